use super::*;
use std::sync::Arc;
use varuna_plan::state::mix;
use varuna_plan::{Plan, WorkerId};

/// A record that was written by a release without compression.
const UNCOMPRESSED: &[u8] = include_bytes!("uncompressed.json");

/// The fixture's record with the addresses of this many additional workers, whose ids are random, like real ones.
fn of_workers(workers: u64) -> Record {
    let mut record = decode(UNCOMPRESSED).unwrap();
    let plan: &Plan = record.plan.as_ref().unwrap();
    let mut plan = plan.clone();
    let address = |n: u64| {
        let id = WorkerId(mix(n, 1));
        (id, format!("10.0.{}.{}:4000", n / 256 % 256, n % 256))
    };
    plan.addresses.extend((1..=workers).map(address));
    record.plan = Some(Arc::new(plan));
    record
}

#[test]
fn old_and_short_records_are_read_unchanged() {
    let record = decode(UNCOMPRESSED).unwrap();
    assert_eq!((record.version, record.term), (3, 2));
    assert!(record.plan.is_some() && record.next.is_some());
    assert_eq!(encode(&record).unwrap(), serde_json::to_vec(&record).unwrap());
}

#[test]
fn a_long_record_is_compressed_and_read_again() {
    let record = of_workers(4_000);
    let (text, stored) = (serde_json::to_vec(&record).unwrap(), encode(&record).unwrap());
    assert!(stored.starts_with(&GZIP));
    assert!(
        stored.len() < text.len() / 2,
        "{} of {} bytes",
        stored.len(),
        text.len()
    );
    assert_eq!(decode(&stored).unwrap(), record);
    assert_eq!(decode(&text).unwrap(), record, "as an earlier release wrote it");
}

#[test]
fn what_is_cut_or_damaged_is_refused() {
    let stored = encode(&of_workers(4_000)).unwrap();
    let cut = decode(&stored[..stored.len() - 1]).unwrap_err();
    assert!(matches!(cut, RecordFormatError::Compressed(_)), "{cut}");
    let mut damaged = stored.clone();
    // A byte of the checksum.
    let at = damaged.len() - 6;
    damaged[at] ^= 1;
    let error = decode(&damaged).unwrap_err();
    assert!(matches!(error, RecordFormatError::Compressed(_)), "{error}");
    let error = decode(b"{").unwrap_err().to_string();
    assert!(error.starts_with("as text: "), "{error}");
}

#[test]
fn a_few_bytes_do_not_become_many() {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&vec![b' '; 1 << 20]).unwrap();
    let bomb = packed.finish().unwrap();
    let error = decode(&bomb).unwrap_err();
    let allowed = bomb.len() * RATIO_MAX;
    assert!(
        matches!(error, RecordFormatError::TooLong { allowed: a, .. } if a == allowed),
        "{error}"
    );
    assert!(unpack(&bomb).is_err() && allowed < 1 << 17);
}
