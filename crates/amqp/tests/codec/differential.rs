//! Agreement with the crate `amq-protocol`, in both directions: it reads everything that this crate accepts, and
//! encodes it to the same bytes as this crate. Unused arguments, which it drops, are left empty.

use amq_protocol::frame::{WriteContext, gen_frame, parse_frame};
use amqp::frame::{self, FrameKind};
use amqp::{ContentHeader, Frame, Method, Properties, RawTable};
use proptest::prelude::*;

use crate::common::{any_method_payload, any_properties, any_table};

/// Reads one frame with amq-protocol and writes it again.
fn there_and_back(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let (rest, frame) = parse_frame(bytes).map_err(|error| format!("{error:?}"))?;
    if !rest.is_empty() {
        return Err(format!("{} bytes left", rest.len()));
    }
    let written = gen_frame(&frame)(WriteContext::from(Vec::new())).map_err(|error| format!("{error:?}"))?;
    Ok(written.into_inner().0)
}

fn amq_protocol_preserves(argument: &str) -> bool {
    !argument.starts_with("reserved") && argument != "prefetch_size"
}

proptest! {
    #[test]
    fn methods(payload in any_method_payload(amq_protocol_preserves)) {
        let method = Method::decode(&payload).unwrap();
        // Its reserved argument is always 1 in amq-protocol.
        prop_assume!(!matches!(method, Method::AccessRequestOk(_)));
        let mut bytes = Vec::new();
        frame::write_method(&mut bytes, 3, method);
        let back = there_and_back(&bytes);
        prop_assert_eq!(back.as_ref(), Ok(&bytes));
        let frame = Frame::parse(&bytes, 0).unwrap().unwrap();
        prop_assert_eq!(Method::decode(frame.payload), Ok(method));
    }

    #[test]
    fn tables(table in any_table()) {
        let bytes = table.encode();
        // As client properties, since amq-protocol reads tables within methods.
        let mut written = Vec::new();
        let start_ok = amqp::method::connection::StartOk {
            client_properties: RawTable::check(&bytes).unwrap(),
            ..Default::default()
        };
        frame::write_method(&mut written, 0, start_ok);
        let back = there_and_back(&written);
        prop_assert_eq!(back.as_ref(), Ok(&written));
    }

    #[test]
    fn properties(bytes in any_properties(), body_size: u64) {
        let properties = Properties::decode(&bytes).unwrap();
        let mut encoded = Vec::new();
        properties.encode(&mut encoded);
        let mut written = Vec::new();
        frame::write_content_header(&mut written, 3, body_size, &encoded);
        let back = there_and_back(&written);
        prop_assert_eq!(back.as_ref(), Ok(&written));
        let frame = Frame::parse(&written, 0).unwrap().unwrap();
        let header = ContentHeader::decode(frame.payload).unwrap();
        prop_assert_eq!((frame.kind, header.body_size), (FrameKind::Header, body_size));
        prop_assert_eq!(Properties::decode(header.properties), Ok(properties));
    }

    #[test]
    fn bodies(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut written = Vec::new();
        frame::write_body(&mut written, 3, &body);
        let back = there_and_back(&written);
        prop_assert_eq!(back.as_ref(), Ok(&written));
    }
}
