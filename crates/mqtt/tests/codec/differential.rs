//! Compares the codec with another implementation of MQTT 3.1.1 and 5.0.

use std::sync::Arc;

use mqtt::{FixedHeader, MqttVersion, Packet, PacketDecoder};
use mqtt_protocol_core::mqtt::packet::{v3_1_1 as old, v5_0 as new};
use proptest::prelude::*;
use proptest::sample::select;

use crate::common::any_packet;

macro_rules! read {
    ($($kind:literal $module:ident $name:ident),*; $publish:ident; $number:expr, $flags:expr, $body:expr) => {
        match $number {
            $($kind => $module::$name::parse($body).ok().filter(|read| read.1 == $body.len())
                .map(|read| read.0.to_continuous_buffer()),)*
            3 => $publish::Publish::parse($flags, Arc::from($body)).ok().filter(|read| read.1 == $body.len())
                .map(|read| read.0.to_continuous_buffer()),
            _ => None,
        }
    };
}

/// The packet as the other implementation writes it after reading it.
fn theirs(version: MqttVersion, bytes: &[u8]) -> Option<Vec<u8>> {
    let header = FixedHeader::parse(bytes).ok()??;
    let body = bytes.get(header.len..header.packet_len())?;
    let (number, flags) = (header.first >> 4, header.first & 15);
    if version.is_5() {
        read!(1 new Connect, 2 new Connack, 4 new Puback, 5 new Pubrec, 6 new Pubrel, 7 new Pubcomp,
              8 new Subscribe, 9 new Suback, 10 new Unsubscribe, 11 new Unsuback, 12 new Pingreq, 13 new Pingresp,
              14 new Disconnect, 15 new Auth; new; number, flags, body)
    } else {
        read!(1 old Connect, 2 old Connack, 4 old Puback, 5 old Pubrec, 6 old Pubrel, 7 old Pubcomp,
              8 old Subscribe, 9 old Suback, 10 old Unsubscribe, 11 old Unsuback, 12 old Pingreq, 13 old Pingresp,
              14 old Disconnect; old; number, flags, body)
    }
}

/// Valid from 5.0 on (section 3.1.2.9), but the other implementation refuses it.
fn is_password_without_user(bytes: &[u8]) -> bool {
    let mut decoder = PacketDecoder::new(MqttVersion::V5, u32::MAX);
    match decoder.decode(bytes).ok().and_then(|step| step.packet) {
        Some(Packet::Connect(connect)) => connect.password.is_some() && connect.user_name.is_none(),
        _ => false,
    }
}

fn both(
    packet: impl Fn(MqttVersion) -> BoxedStrategy<Vec<u8>>,
) -> impl Strategy<Value = (MqttVersion, Vec<u8>)> {
    let packet = std::rc::Rc::new(packet);
    select(&[MqttVersion::V311, MqttVersion::V5][..])
        .prop_flat_map(move |version| (Just(version), packet(version)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn valid_packets_are_read_and_written_alike((version, bytes) in both(any_packet)) {
        let theirs = theirs(version, &bytes);
        if theirs.is_none() && is_password_without_user(&bytes) {
            return Ok(());
        }
        prop_assert_eq!(theirs, Some(bytes));
    }

    #[test]
    fn damaged_packets_mean_the_same_to_both_decoders_if_both_accept_them(
        (version, mut bytes) in both(any_packet),
        damage in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..3),
    ) {
        for (at, byte) in damage {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let mut decoder = PacketDecoder::new(version, u32::MAX);
        let ours = decoder.decode(&bytes).ok().and_then(|step| step.packet);
        let theirs = theirs(version, &bytes);
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            // A CONNECT names its own version; the other implementation decodes a single version.
            if let Packet::Connect(connect) = &ours {
                prop_assert_eq!(connect.version.is_5(), version.is_5());
            }
            let mut decoder = PacketDecoder::new(version, u32::MAX);
            let step = decoder.decode(&theirs);
            prop_assert_eq!(step.map(|step| step.packet), Ok(Some(ours)));
        }
    }
}
