//! A client that asks for more than the disk takes has to pause.

use super::*;

#[test]
fn a_client_that_retains_waits_for_the_disk_even_at_qos_0() {
    const LIMIT: usize = 64 * 1024;
    let disk = SimDisk::new(1, 1 << 30);
    let settings =
        JournalSettings { segment_size: 1 << 20, pending_limit: LIMIT, ..JournalSettings::default() };
    let mut world = World::with(&disk, settings);
    let mut client = world.connected(MqttVersion::V5, "me", 0);
    world.round();
    let payload = vec![0; 1024];
    let kept =
        PublishPacket { retain: true, payload: Payload::new(&payload), ..message("t", QoS::AtMostOnce, 0) };
    let (mut one, mut bytes) = (Vec::new(), Vec::new());
    Packet::Publish(kept).encode(MqttVersion::V5, &mut one);
    (0..200).for_each(|_| bytes.extend_from_slice(&one));
    let mut rounds = 0;
    while !bytes.is_empty() {
        let taken = client.connection.handle_input(&bytes, client.now);
        assert!(taken <= LIMIT + one.len(), "{taken} bytes wait for the disk");
        bytes.drain(..taken);
        client.look();
        if !bytes.is_empty() {
            assert_eq!(client.connection.intent(), Intent::Pause);
            world.round();
            client.look();
            assert_eq!(client.connection.intent(), Intent::Run, "there is room again");
            rounds += 1;
        }
    }
    assert!(rounds > 1);
}
