//! Decoding does not depend on how a stream is cut into reads, and no input makes a decoder panic.

use mqtt::server::{MqttSettings, ServerConnection};
use mqtt::{MqttVersion, PacketDecoder};
use proptest::prelude::*;

use crate::bodies;
use crate::common::{any_packet, any_version};

/// Decodes `stream`, given `step` more bytes at a time, and encodes the packets again.
fn heard(version: MqttVersion, stream: &[u8], step: usize) -> Vec<Vec<u8>> {
    let mut decoder = PacketDecoder::new(version, u32::MAX);
    let (mut heard, mut start, mut end) = (Vec::new(), 0, 0);
    while end < stream.len() {
        end = (end + step).min(stream.len());
        loop {
            let step = decoder.decode(&stream[start..end]).expect("the stream is valid");
            start += step.taken;
            let Some(packet) = step.packet else { break };
            let mut bytes = Vec::new();
            packet.encode(version, &mut bytes);
            heard.push(bytes);
        }
    }
    assert_eq!(start, stream.len());
    heard
}

proptest! {
    #[test]
    fn packets_are_decoded_from_chunks_of_any_size(
        (version, packets) in any_version().prop_flat_map(|version| {
            (Just(version), proptest::collection::vec(any_packet(version), 0..8))
        }),
        step in 1usize..5000,
    ) {
        let stream = packets.concat();
        prop_assert_eq!(heard(version, &stream, step), packets);
    }

    #[test]
    fn nonsense_is_judged_the_same_however_it_is_cut(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        bodies::packets(&bytes);
        bodies::connection(&bytes);
    }
}

#[test]
fn a_packet_in_single_bytes_is_looked_at_once_for_each_of_them() {
    // The packet must not stay in the input, where the reader would pass all of it again for each byte.
    let mut packet = vec![0x30, 0x80, 0x80, 0x40, 0, 1, b'a'];
    packet.resize(packet.len() + (1 << 20) - 3, 7);
    let mut connection = ServerConnection::new(MqttSettings::default());
    let mut out: Vec<u8> = Vec::new();
    let now = std::time::Instant::now();
    let connect = b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01c";
    assert_eq!(connection.handle_input(connect, now, &mut out).taken, connect.len());
    connection.accept(None, None, now, &mut out);
    let mut left = 0;
    let mut most = 0;
    let mut published = 0;
    for at in 0..packet.len() {
        let step = connection.handle_input(&packet[at - left..=at], now, &mut out);
        left = left + 1 - step.taken;
        most = most.max(left);
        published += usize::from(step.event.is_some());
    }
    assert!(most <= mqtt::MAX_HEADER_LEN, "{most} bytes were left in the input");
    assert_eq!((published, left), (1, 0));
}
