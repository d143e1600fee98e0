//! An encoded packet is decoded to the same packet, and encoded again to the same bytes.

use mqtt::PacketDecoder;
use proptest::prelude::*;

use crate::common::{any_packet, any_version};

proptest! {
    #[test]
    fn packets_come_back_as_they_were(
        (version, bytes) in any_version().prop_flat_map(|version| (Just(version), any_packet(version))),
    ) {
        let mut decoder = PacketDecoder::new(version, u32::MAX);
        let step = decoder.decode(&bytes).expect("it is a valid packet");
        prop_assert_eq!(step.taken, bytes.len());
        let mut again = Vec::new();
        step.packet.expect("it is whole").encode(version, &mut again);
        prop_assert_eq!(again, bytes);
    }
}
