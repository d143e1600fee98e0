//! Content: a method that carries a message, then a header frame, then body frames, on one channel
//! (specification section 4.2.6).
//!
//! The fast path for reading is [`Whole::peek`]: it borrows a message whose other frames already follow the method in the
//! receive buffer. The general path is an [`Assembler`] per channel, which consumes the frames one by one.
//! [`write_content`] writes a message.

mod assembler;
mod whole;
mod write;

pub use assembler::{Assembled, Assembler, Content};
pub use whole::Whole;
pub use write::{max_properties_len, write_content};

use crate::error::{Fault, ReplyCode};

/// The largest message that any configuration allows, in bytes; also RabbitMQ's bound.
const MAX_MESSAGE_SIZE: u64 = 512 * 1024 * 1024;

/// Validates an announced body size before anything is allocated for it. `limit` is the configured one, in bytes.
///
/// # Errors
/// Above the configured limit 406 PRECONDITION_FAILED, which ends the channel; above 512 MiB 501
/// FRAME_ERROR, which ends the connection. Both with RabbitMQ's texts.
#[inline]
pub fn check_size(body_size: u64, limit: u64) -> Result<(), Fault> {
    if body_size <= limit && body_size <= MAX_MESSAGE_SIZE {
        Ok(())
    } else {
        Err(too_large(body_size, limit))
    }
}

#[cold]
fn too_large(size: u64, limit: u64) -> Fault {
    if size > MAX_MESSAGE_SIZE {
        let text = format!("content body size {size} exceeds maximum allowed size {MAX_MESSAGE_SIZE}");
        return Fault::new(ReplyCode::FrameError, text);
    }
    let configured = if limit == MAX_MESSAGE_SIZE { "" } else { "configured " };
    let text = format!("message size {size} is larger than {configured}max size {limit}");
    Fault::new(ReplyCode::PreconditionFailed, text)
}
