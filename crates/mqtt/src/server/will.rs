//! A will that outlives the CONNECT it came with (section 3.1.2.5).

use crate::packet::{QoS, Will};
use crate::properties::{Property, PropertyList};

/// The message that is published when a client is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWill {
    /// The topic to which it is published.
    pub topic: Box<str>,
    /// The quality at which it is published.
    pub qos: QoS,
    /// Whether it is retained.
    pub retain: bool,
    /// The properties of the message to be published, without the delay.
    pub properties: PropertyList,
    /// The payload of the message.
    pub payload: Box<[u8]>,
    /// Seconds between the connection's end and the publication, unless the client reconnects before.
    pub delay: u32,
}

impl From<&Will<'_>> for StoredWill {
    fn from(will: &Will<'_>) -> Self {
        let kept =
            will.properties.iter().filter(|property| !matches!(property, Property::WillDelayInterval(_)));
        Self {
            topic: will.topic.into(),
            qos: will.qos,
            retain: will.retain,
            properties: kept.fold(PropertyList::new(), PropertyList::with),
            payload: will.payload.into(),
            delay: will.properties.will_delay_interval().unwrap_or(0),
        }
    }
}
