//! Plans to be sent to workers, each encoded and compressed once: the same bytes are sent to thousands of workers.
//!
//! Each worker gets the whole plan, so the bytes of a launch grow with the square of the number of workers: a worker may become a peer, a
//! source or a successor of any other, and checks the plan as a whole. A plan names each worker several times, so gzip removes most of it.

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

/// Number of plans that are kept: the plan in force and the next one; no others are sent.
const KEPT: usize = 2;

/// A higher level saves 2 % and takes twice as long.
const LEVEL: Compression = Compression::new(4);
/// Plans of at least this length are compressed: those with some hundred workers. A shorter one costs little.
const COMPRESSED_FROM: usize = 1 << 12;
/// The first bytes of gzip (RFC 1952). No message begins like this: its first byte would be a field of a type that does not exist.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Maximum ratio of a plan's length to its compressed length. Worker ids are random, so plans are compressed to a third or less. The limit
/// keeps a short message from taking [`MESSAGE_BYTES_MAX`] of memory.
const RATIO_MAX: usize = 64;

/// The newest plans that were sent, encoded.
#[derive(Default)]
pub struct EncodedPlans(VecDeque<(Arc<Plan>, Bytes)>);

impl EncodedPlans {
    /// The order to prepare for the plan, in its wire form, and whether the plan is sent for the first time.
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
        // Compression in memory does not fail; if it did, the plan can be sent uncompressed.
        Err(_) => encoded.into(),
    }
}

/// Decodes a plan, compressed or not.
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

/// Unpacks the bytes. Memory is allocated as they are produced, and never more than a plan may have.
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
