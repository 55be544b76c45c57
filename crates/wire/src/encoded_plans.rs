//! Plans on their way to workers, each encoded and compressed once: for thousands of workers the same bytes are sent.
//!
//! Each worker gets the whole plan, so the bytes of a launch grow with the square of the workers: a worker may become a peer, a source or a
//! successor of any other, and checks the plan as a whole. A plan names each worker several times, so that gzip takes most of it away.

use crate::error::{WireError, need};
use crate::{MESSAGE_BYTES_MAX, plan, v1};
use bytes::Bytes;
use flate2::Compression;
use flate2::read::{GzDecoder, GzEncoder};
use prost::Message as _;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::Read as _;
use std::sync::Arc;
use varuna_plan::Plan;

/// The plan in force and the one on its way: no others are sent.
const KEPT: usize = 2;

/// A higher level gains 2 % and takes twice as long.
const LEVEL: Compression = Compression::new(4);
/// Plans from this length on are compressed: some hundred workers. A shorter one costs little.
const COMPRESSED_FROM: usize = 1 << 12;
/// How gzip begins (RFC 1952), which no message does: its first byte would be a field of a kind that there is not.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// A plan has at most so many times the bytes that it was compressed to; ids of workers are random, so plans come to a third or less. It keeps a
/// short message from taking [`MESSAGE_BYTES_MAX`] of memory.
const RATIO_MAX: usize = 64;

/// The newest plans that were sent, encoded.
#[derive(Default)]
pub struct EncodedPlans(VecDeque<(Arc<Plan>, Bytes)>);

impl EncodedPlans {
    /// The order to prepare for the plan, in its wire form; and whether the plan was not sent before.
    pub fn prepare(&mut self, plan: &Arc<Plan>, term: u64) -> (v1::Down, bool) {
        let known = self.0.iter().find(|(kept, _)| Arc::ptr_eq(kept, plan));
        if let Some((_, bytes)) = known {
            return (prepare(bytes.clone(), term), false);
        }
        let bytes = encode(plan);
        self.0.truncate(KEPT - 1);
        self.0.push_front((Arc::clone(plan), bytes.clone()));
        (prepare(bytes, term), true)
    }
}

pub(crate) fn encode(plan: &Plan) -> Bytes {
    let encoded = plan::to_wire(plan).encode_to_vec();
    if encoded.len() < COMPRESSED_FROM {
        return encoded.into();
    }
    let mut packed = Vec::new();
    match GzEncoder::new(&*encoded, LEVEL).read_to_end(&mut packed) {
        Ok(_) => packed.into(),
        // Memory is read and written: this does not happen, and a plan may go as it is.
        Err(_) => encoded.into(),
    }
}

/// The plan that such bytes stand for, compressed or not.
pub(crate) fn decode(bytes: &[u8]) -> Result<Plan, WireError> {
    if bytes.is_empty() {
        return need(None, "Prepare", "plan");
    }
    let wrong = |why: String| {
        let found = format!("{} bytes ({why})", bytes.len());
        WireError::value("Prepare", "plan", found, "an encoded Plan")
    };
    let encoded = unpacked(bytes).map_err(wrong)?;
    let wire = v1::Plan::decode(&*encoded).map_err(|error| wrong(error.to_string()))?;
    plan::read(wire)
}

/// Memory is taken as the bytes come out, and never for more than a plan may have.
fn unpacked(bytes: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    if !bytes.starts_with(&GZIP) {
        return Ok(bytes.into());
    }
    let allowed = bytes.len().saturating_mul(RATIO_MAX).min(MESSAGE_BYTES_MAX);
    let mut unpacked = Vec::new();
    let read = GzDecoder::new(bytes)
        .take(allowed as u64 + 1)
        .read_to_end(&mut unpacked);
    match read {
        Ok(found) if found > allowed => Err(format!("compressed from more than {allowed} bytes")),
        Ok(_) => Ok(unpacked.into()),
        Err(error) => Err(error.to_string()),
    }
}

fn prepare(plan: Bytes, term: u64) -> v1::Down {
    v1::Down {
        term,
        order: Some(v1::down::Order::Prepare(v1::Prepare { plan })),
    }
}
