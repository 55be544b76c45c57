//! Messages between peers: hellos and frames.

use super::{ID, LITTLE, Seeds};
use crate::{Form, Target};
use varuna_frames::{
    Answer, Digester, Frame, GradientHeader, Handshake, Hello, Incoming, Limits, Packet, Side, StateError,
    StateHeader, Tag, VERSIONS, read_answer, read_proof, write_answer, write_proof,
};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Generation, Step, Unit, WorkerId};
use varuna_protocol::{Norms, PeerMessage};

pub(super) const HELLO: Target = Target {
    name: "hello",
    what: "the hello of a connection, its answer and the proofs",
    form: Form::Bytes,
    words: &["VRNA"],
    memory: LITTLE,
    seeds: hello_seeds,
    run: run_hello,
};

pub(super) const FRAMES: Target = Target {
    name: "frames",
    what: "frames between workers, with the messages and states in them",
    form: Form::Bytes,
    words: &[],
    // Memory for a long payload or state is allocated before all of it has arrived.
    memory: 96 << 20,
    seeds: frame_seeds,
    run: run_sealed_frames,
};

fn hello_seeds() -> Seeds {
    let handshake = Handshake {
        hello: Hello {
            versions: VERSIONS,
            generation: Generation(3),
            from: WorkerId(1),
            to: WorkerId(2),
            nonce: [7; 32],
            encrypted: false,
        },
        version: VERSIONS.newest,
        nonce: [9; 32],
        binding: None,
    };
    let mut wire = Vec::new();
    handshake.hello.write(&mut wire).expect("memory takes everything");
    let Handshake { version, nonce, .. } = handshake;
    write_answer(&mut wire, Ok(Answer { version, nonce })).expect("memory takes everything");
    for side in [Side::Acceptor, Side::Dialer] {
        write_proof(&mut wire, &handshake.prove("secret", side)).expect("memory takes everything");
    }
    vec![("proven", wire)]
}

/// Both sides of a handshake, one after the other.
fn run_hello(mut input: &[u8]) -> Result<String, String> {
    let whole = input;
    let said = |e: std::io::Error| e.to_string();
    let refused = |refusal| format!("{refusal:?}");
    let (hello, common) = Hello::read(&mut input).map_err(said)?.map_err(refused)?;
    assert!(VERSIONS.contain(common) && hello.versions.contain(common));
    let mut written = Vec::new();
    hello.write(&mut written).expect("memory takes everything");
    assert_eq!(
        written,
        whole[..written.len()],
        "every byte of a hello means something"
    );
    let Answer { version, nonce } = read_answer(&mut input).map_err(said)?.map_err(refused)?;
    // Any binding is as good as another, because no proof of the corpus belongs to a session.
    let binding = hello.encrypted.then_some([5; 32]);
    let handshake = Handshake {
        hello,
        version,
        nonce,
        binding,
    };
    let mut proven = Vec::new();
    for side in [Side::Acceptor, Side::Dialer] {
        let proof = read_proof(&mut input).map_err(said)?;
        proven.push(handshake.proves("secret", side, &proof));
    }
    Ok(format!("{proven:?}"))
}

fn frame_seeds() -> Seeds {
    let wire = |frames: &[Frame]| {
        let mut wire = Vec::new();
        for frame in frames {
            frame.write(&mut wire).expect("memory takes everything");
        }
        wire
    };
    vec![
        ("tensors", wire(&tensors())),
        ("messages", wire(&messages())),
        ("state", wire(&state())),
        ("gradient", wire(&gradient())),
        ("prepared", wire(&prepared())),
    ]
}

fn tensors() -> [Frame; 5] {
    let tag = Tag::Activation {
        stage: 1,
        step: Step(4),
        micro_batch: 2,
    };
    let (communicator, round) = (1, 1);
    let communicator_id = Tag::CommunicatorId { communicator, round };
    [
        Frame::Tensor(tag, Packet::Float32(vec![1.0, -0.5])),
        Frame::Tensor(tag, Packet::BFloat16(vec![0x3f80, 0xbf00])),
        Frame::Tensor(tag, Packet::Float16(vec![0x3c00])),
        Frame::Tensor(
            Tag::Ring {
                step: Step(4),
                unit: Unit(1),
                round: 2,
            },
            Packet::Float32(vec![0.25; 3]),
        ),
        Frame::Tensor(communicator_id, Packet::Float32(vec![1.0; 33])),
    ]
}

fn messages() -> [Frame; 3] {
    let norm = UnitNorm {
        norm2: 2.5,
        overflow: false,
        before: varuna_plan::OptimizerProgress::START,
        loss: 1.5,
        eval_loss: Some(1.25),
    };
    let norms = PeerMessage::Norm(Norms {
        step: Step(4),
        units: vec![(Unit(0), norm), (Unit(1), norm)],
        armed: Generation(3),
        save: true,
        store_busy: false,
    });
    let unit = Unit(1);
    let held = Some(ID);
    let encode = |message: &PeerMessage| postcard::to_stdvec(message).expect("a message can be written");
    [
        norms,
        PeerMessage::Fetch { unit },
        PeerMessage::Follow { unit, held },
    ]
    .map(|m| Frame::Message(encode(&m)))
}

/// A state in two parts.
fn state() -> [Frame; 4] {
    let header = StateHeader {
        unit: Unit(1),
        id: ID,
        decision: Some(super::conversation::decision(ID)),
        progress: varuna_plan::OptimizerProgress {
            adam_steps: 5,
            ..varuna_plan::OptimizerProgress::START
        },
        elements: 4,
    };
    let encoded = header.encode().expect("a header can be written");
    let mut digester = Digester::new(&encoded);
    digester.add(&[1.0, 1.0, 1.0, 2.0]);
    [
        Frame::State(encoded),
        Frame::Part(Unit(1), ID.step, vec![1.0; 3]),
        Frame::Part(Unit(1), ID.step, vec![2.0]),
        Frame::End(Unit(1), ID.step, digester.digest()),
    ]
}

/// A gradient of the same unit that is sent before its step is decided.
fn prepared() -> [Frame; 3] {
    let header = super::conversation::prepared(ID);
    let encoded = header.encode().expect("a header can be written");
    let mut digester = Digester::new(&encoded);
    digester.add(&[1.0, 2.0]);
    [
        Frame::PreparedGradient(encoded),
        Frame::Part(Unit(1), ID.step, vec![1.0, 2.0]),
        Frame::End(Unit(1), ID.step, digester.digest()),
    ]
}

/// A gradient of the same unit.
fn gradient() -> [Frame; 3] {
    let header = GradientHeader {
        unit: Unit(1),
        decision: super::conversation::decision(ID),
        elements: 2,
    };
    let encoded = header.encode().expect("a header can be written");
    let mut digester = Digester::new(&encoded);
    digester.add(&[1.0, 2.0]);
    [
        Frame::UnitGradient(encoded),
        Frame::Part(Unit(1), ID.step, vec![1.0, 2.0]),
        Frame::End(Unit(1), ID.step, digester.digest()),
    ]
}

/// Hardly any mutated input has valid checksums. So each is read unchanged, and once more with corrected checksums.
fn run_sealed_frames(input: &[u8]) -> Result<String, String> {
    let _ = run_frames(input);
    let mut sealed = input.to_vec();
    seal(&mut sealed);
    run_frames(&sealed)
}

/// Corrects the checksums of all frames. `varuna_frames` describes their places in a header.
fn seal(mut bytes: &mut [u8]) {
    const HEADER: usize = 32;
    while bytes.len() >= HEADER {
        let (header, rest) = bytes.split_at_mut(HEADER);
        let length = u32::from_le_bytes(std::array::from_fn(|i| header[24 + i])) as usize;
        let (payload, rest) = rest.split_at_mut(length.min(rest.len()));
        header[12..16].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
        let own = crc32c::crc32c(&header[..28]);
        header[28..].copy_from_slice(&own.to_le_bytes());
        bytes = rest;
    }
}

/// Does what a worker does with a connection, until it ends.
fn run_frames(mut input: &[u8]) -> Result<String, String> {
    let limits = Limits::default();
    let mut transfer: Option<Incoming> = None;
    let mut kinds = String::new();
    loop {
        let frame = match Frame::read(&mut input, &limits) {
            Ok(frame) => frame,
            Err(_) if input.is_empty() && !kinds.is_empty() => return Ok(kinds),
            Err(error) => return Err(format!("{kinds} {error}")),
        };
        let mut written = Vec::new();
        frame.write(&mut written).expect("memory takes everything");
        let again =
            Frame::read(&mut written.as_slice(), &limits).expect("a frame that was written can be read");
        let mut rewritten = Vec::new();
        again.write(&mut rewritten).expect("memory takes everything");
        assert_eq!(rewritten, written);
        kinds.push(match frame {
            Frame::Tensor(..) => 't',
            Frame::Message(bytes) => {
                let message: PeerMessage =
                    postcard::from_bytes(&bytes).map_err(|e| format!("{kinds} {e}"))?;
                assert!(postcard::to_stdvec(&message).is_ok());
                'm'
            }
            Frame::State(bytes) => {
                let announced = Incoming::announced(&bytes, &limits).map_err(|e| format!("{kinds} {e}"))?;
                transfer = Some(announced);
                's'
            }
            Frame::UnitGradient(bytes) => {
                let announced = Incoming::gradient_announced(&bytes, &limits);
                transfer = Some(announced.map_err(|e| format!("{kinds} {e}"))?);
                'g'
            }
            Frame::PreparedGradient(bytes) => {
                let announced = Incoming::prepared_announced(&bytes, &limits);
                transfer = Some(announced.map_err(|e| format!("{kinds} {e}"))?);
                'k'
            }
            Frame::Part(unit, step, part) => {
                let incoming = transfer.as_mut().ok_or("a part without its header")?;
                incoming
                    .extend(unit, step, &part)
                    .map_err(|e| format!("{kinds} {e}"))?;
                'p'
            }
            Frame::End(unit, step, digest) => {
                let incoming = transfer.take().ok_or("an end without a header")?;
                match incoming.finish(unit, step, &digest) {
                    Ok(_) => 'e',
                    Err(StateError::Digest { .. }) => 'd',
                    Err(e) => return Err(format!("{kinds} {e}")),
                }
            }
        });
        kinds.truncate(8);
    }
}
