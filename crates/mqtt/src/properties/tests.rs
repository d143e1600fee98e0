use super::*;

fn list(properties: &[Property<'_>]) -> Vec<u8> {
    properties.iter().fold(PropertyList::new(), |list, property| list.with(*property)).bytes
}

fn code(bytes: &[u8], holder: Holder) -> Option<ReasonCode> {
    PacketProperties::check(bytes, holder).err().map(|fault| fault.code)
}

#[test]
fn properties_are_read_as_they_were_written() {
    let written = [
        Property::PayloadFormatIndicator(true),
        Property::MessageExpiryInterval(u32::MAX),
        Property::ContentType("text/plain"),
        Property::ResponseTopic("a/b"),
        Property::CorrelationData(&[0, 1, 255]),
        Property::SubscriptionIdentifier(1),
        Property::SubscriptionIdentifier(268_435_455),
        Property::TopicAlias(7),
        Property::UserProperty("name", "first"),
        Property::UserProperty("name", "second"),
    ];
    let bytes = list(&written);
    let properties = PacketProperties::check(&bytes, Holder::Publish).expect("they are well-formed");
    assert_eq!(properties.iter().collect::<Vec<_>>(), written);
    assert_eq!(properties.user_properties().collect::<Vec<_>>(), [("name", "first"), ("name", "second")]);
    assert_eq!(properties.topic_alias(), Some(7));
    assert_eq!(properties.content_type(), Some("text/plain"));
    assert_eq!(properties.receive_maximum(), None);
}

#[test]
fn a_repeated_property_is_refused() {
    let twice = list(&[Property::ReceiveMaximum(1), Property::ReceiveMaximum(1)]);
    assert_eq!(code(&twice, Holder::Connect), Some(ReasonCode::ProtocolError));
    let twice = list(&[Property::SubscriptionIdentifier(1), Property::SubscriptionIdentifier(1)]);
    assert_eq!(code(&twice, Holder::Subscribe), Some(ReasonCode::ProtocolError));
    assert_eq!(code(&twice, Holder::Publish), None);
}

#[test]
fn a_property_in_the_wrong_packet_is_refused() {
    let alias = list(&[Property::TopicAlias(1)]);
    assert_eq!(code(&alias, Holder::Publish), None);
    assert_eq!(code(&alias, Holder::Will), Some(ReasonCode::ProtocolError));
    let delay = list(&[Property::WillDelayInterval(1)]);
    assert_eq!(code(&delay, Holder::Will), None);
    assert_eq!(code(&delay, Holder::Connect), Some(ReasonCode::ProtocolError));
    let reason = list(&[Property::ReasonString("x")]);
    assert_eq!(code(&reason, Holder::Ack), None);
    assert_eq!(code(&reason, Holder::Publish), Some(ReasonCode::ProtocolError));
}

#[test]
fn values_out_of_range_are_refused() {
    for property in [Property::ReceiveMaximum(0), Property::MaximumPacketSize(0)] {
        assert_eq!(code(&list(&[property]), Holder::Connect), Some(ReasonCode::ProtocolError));
    }
    assert_eq!(code(&list(&[Property::TopicAlias(0)]), Holder::Publish), Some(ReasonCode::TopicAliasInvalid));
    assert_eq!(code(&[1, 2], Holder::Publish), Some(ReasonCode::ProtocolError), "a flag of 2");
    assert_eq!(code(&[4, 2], Holder::Publish), Some(ReasonCode::MalformedPacket), "an unknown property");
    assert_eq!(code(&[2, 0, 0, 0], Holder::Publish), Some(ReasonCode::MalformedPacket), "a short integer");
}

#[test]
fn authentication_data_needs_a_method() {
    let data = Property::AuthenticationData(&[1]);
    assert_eq!(code(&list(&[data]), Holder::Connect), Some(ReasonCode::ProtocolError));
    assert_eq!(code(&list(&[data, Property::AuthenticationMethod("x")]), Holder::Connect), None);
}
