use super::*;

#[test]
fn frames_survive_the_wire() {
    let frames = [
        Frame::Tensor(
            Tag::Activation {
                stage: 3,
                step: Step(9),
                micro_batch: 3,
            },
            Packet::Float32(vec![1.5, -0.0, f32::MAX]),
        ),
        Frame::Tensor(
            Tag::Activation {
                stage: 3,
                step: Step(9),
                micro_batch: 4,
            },
            Packet::BFloat16(vec![0x3fc0, 0x8000, 0x7f7f]),
        ),
        Frame::Tensor(
            Tag::Gradient {
                stage: 3,
                step: Step(u64::MAX),
                micro_batch: 0,
            },
            Packet::Float16(vec![]),
        ),
        Frame::Tensor(
            Tag::Ring {
                step: Step(1),
                unit: Unit(7),
                round: 5,
            },
            Packet::Float32(vec![0.25; 17]),
        ),
        Frame::Tensor(
            Tag::CommunicatorId {
                communicator: 3,
                round: 1,
            },
            Packet::Float32(vec![f32::MIN_POSITIVE; 33]),
        ),
        Frame::Message(vec![1, 2, 3]),
        Frame::State(vec![]),
        Frame::UnitGradient(vec![4]),
        Frame::PreparedGradient(vec![5, 6]),
        Frame::Part(Unit(2), Step(6), vec![2.0]),
        Frame::End(Unit(2), Step(6), [9; 32]),
    ];
    let mut wire = Vec::new();
    for frame in &frames {
        frame.write(&mut wire).unwrap();
    }
    let mut input = wire.as_slice();
    for frame in frames {
        assert_eq!(Frame::read(&mut input, &Limits::default()).unwrap(), frame);
    }
}

#[test]
fn a_payload_is_put_together_from_its_pieces() {
    let input: Vec<u8> = (0..100).collect();
    for (length, ahead) in [(0, 4), (3, 4), (4, 4), (5, 4), (100, 1), (100, 7)] {
        let mut rest = input.as_slice();
        let mut most = 0;
        let read = filled(length, ahead, |piece: &mut [u8]| {
            most = most.max(piece.len());
            rest.read_exact(piece)
        });
        assert_eq!(read.unwrap(), input[..length], "{length} by {ahead}");
        assert!(most <= ahead.max(length / 2), "{most}");
    }
}

#[test]
fn memory_is_allocated_for_received_bytes_only() {
    let mut asked = 0;
    let cut = filled(1 << 30, AHEAD, |piece: &mut [u8]| {
        asked += piece.len();
        Err(io::ErrorKind::UnexpectedEof.into())
    });
    assert!(cut.is_err());
    assert_eq!(asked, AHEAD);
}

#[test]
fn a_frame_of_which_one_bit_was_changed_is_refused() {
    let frame = Frame::Part(Unit(2), Step(6), vec![2.0, -1.0]);
    let mut wire = Vec::new();
    frame.write(&mut wire).unwrap();
    for bit in 0..wire.len() * 8 {
        let mut changed = wire.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let error = Frame::read(&mut changed.as_slice(), &Limits::default()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "bit {bit}: {error}");
        let of = if bit < HEADER_BYTES * 8 {
            "a frame's header"
        } else {
            "a part of a state"
        };
        assert!(error.to_string().contains(of), "bit {bit}: {error}");
    }
}

/// Reads a frame with this header, which must be refused.
fn refused(kind: u16, format: u16, length: u32, expected: &str) {
    let mut header = Header {
        kind: Kind::Activation,
        format: None,
        first: 0,
        second: 0,
        step: Step(0),
        length,
        checksum: 0,
    }
    .encode();
    header[..2].copy_from_slice(&kind.to_le_bytes());
    header[2..4].copy_from_slice(&format.to_le_bytes());
    let sum = crc32c::crc32c(&header[..28]);
    header[28..].copy_from_slice(&sum.to_le_bytes());
    let error = Frame::read(&mut header.as_slice(), &Limits::default()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn lengths_and_kinds_that_no_frame_has_are_refused() {
    refused(
        1,
        1,
        u32::MAX,
        "an activation with a payload of 4294967295 bytes; at most 1073741824",
    );
    refused(
        4,
        0,
        1 << 25,
        "a protocol message with a payload of 33554432 bytes; at most 16777216",
    );
    refused(
        1,
        2,
        u32::MAX,
        "an activation with a payload of 4294967295 bytes; at most 536870912",
    );
    refused(
        5,
        0,
        1025,
        "a header of a state with a payload of 1025 bytes; at most 1024",
    );
    refused(
        6,
        0,
        (1 << 20) + 4,
        "a part of a state with a payload of 1048580 bytes; at most 1048576",
    );
    refused(7, 0, 31, "the end of a state with a payload of 31 bytes");
    refused(8, 0, 0, "the id of a communicator in the element format none");
    refused(
        9,
        0,
        1025,
        "a header of a unit's gradient with a payload of 1025 bytes; at most 1024",
    );
    refused(
        10,
        0,
        1025,
        "a header of a unit's gradient for its spare copy with a payload of 1025 bytes; at most 1024",
    );
    refused(12, 0, 0, "frame kind 12; kinds 1 to 11");
}

#[test]
fn element_formats_that_a_kind_has_not_are_refused() {
    refused(1, 1, 6, "no whole number of float32 elements");
    refused(1, 3, 3, "no whole number of float16 elements");
    refused(6, 0, 6, "no whole number of float32 elements");
    refused(1, 4, 4, "element format 4; known are 1 (float32)");
    refused(1, 0, 4, "an activation in the element format none");
    refused(
        3,
        2,
        4,
        "a part of a reduction in the element format bfloat16; allowed is float32",
    );
    refused(
        4,
        1,
        4,
        "a protocol message in the element format float32; allowed is none",
    );
}
