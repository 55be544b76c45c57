//! The frame of a record, as in TensorFlow's `record_writer.cc`: the length, its checksum, the data, their checksum. All little-endian.

/// The masked checksum. A file of records may contain such files, and checksums of checksums are weak, so TensorFlow rotates the bits and
/// adds a constant.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A record with these data.
#[must_use]
pub fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut bytes = Vec::with_capacity(16 + data.len());
    bytes.extend(length);
    bytes.extend(masked_crc(&length).to_le_bytes());
    bytes.extend(data);
    bytes.extend(masked_crc(data).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// CRC-32C bit by bit, by its definition: polynomial 0x1EDC6F41, with input and output reflected.
    fn crc_by_definition(data: &[u8]) -> u32 {
        let mut crc = u32::MAX;
        for byte in data {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
            }
        }
        !crc
    }

    fn masked(data: &[u8]) -> u32 {
        let crc = crc_by_definition(data);
        crc.rotate_left(17).wrapping_add(0xa282_ead8)
    }

    #[test]
    fn the_checksum_is_the_one_of_rfc_3720() {
        // Appendix B.4: 32 bytes of zeros.
        assert_eq!(crc_by_definition(&[0; 32]), 0x8a91_36aa);
    }

    proptest! {
        #[test]
        fn a_record_is_length_data_and_their_checksums(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            let bytes = record(&data);
            prop_assert_eq!(bytes.len(), data.len() + 16);
            let length = (data.len() as u64).to_le_bytes();
            prop_assert_eq!(&bytes[..8], &length);
            prop_assert_eq!(&bytes[8..12], &masked(&length).to_le_bytes());
            prop_assert_eq!(&bytes[12..12 + data.len()], &data[..]);
            prop_assert_eq!(&bytes[12 + data.len()..], &masked(&data).to_le_bytes());
        }
    }
}
