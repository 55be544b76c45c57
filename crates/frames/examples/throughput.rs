//! What checksums, digests and TLS cost: frames of 1 MiB over loopback, from one thread to another, by turns with and without them.
//! Prints time, processor time of both threads together (which other processes disturb less), and ratios: `cargo run --release -p varuna-frames --example throughput`.
#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made has failed")]

use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;
use varuna_frames::{Digester, Frame, Incoming, Limits, PART_ELEMENTS, StateHeader, Tls};
use varuna_plan::{StateId, Step, Unit};

/// Frames of a turn, 1 MiB each.
const FRAMES: u32 = 128;
/// Turns of each kind.
const TURNS: usize = 31;
/// Bytes of a frame's header.
const HEADER: usize = 32;

/// What both sides do to each frame.
#[derive(Clone, Copy)]
enum Checks {
    /// Header and payload go as they are.
    None,
    /// Each frame has its checksums.
    Checksums,
    /// Checksums and encryption.
    Tls,
    /// The frames are a state, with its digest.
    Digest,
}

fn header() -> StateHeader {
    StateHeader {
        unit: Unit(0),
        id: StateId::INITIAL,
        decision: None,
        progress: varuna_plan::OptimizerProgress::START,
        elements: u64::from(FRAMES) * PART_ELEMENTS as u64,
    }
}

fn part(values: Vec<f32>) -> Frame {
    Frame::Part(Unit(0), Step(0), values)
}

fn send(mut out: impl Write, checks: Checks) {
    let encoded = header().encode().unwrap();
    let mut digester = Digester::new(&encoded);
    let state = vec![1.5f32; PART_ELEMENTS];
    let mut bytes = Vec::new();
    part(state.clone()).write(&mut bytes).unwrap();
    for _ in 0..FRAMES {
        // As a worker does: a copy of a part of its state.
        let values = state.clone();
        match checks {
            Checks::None => {
                out.write_all(&bytes[..HEADER]).unwrap();
                out.write_all(bytemuck::cast_slice(&values)).unwrap();
                continue;
            }
            Checks::Checksums | Checks::Tls => {}
            Checks::Digest => digester.add(&values),
        }
        part(values).write(&mut out).unwrap();
    }
    Frame::End(Unit(0), Step(0), digester.digest())
        .write(&mut out)
        .unwrap();
}

fn receive(mut input: impl Read, checks: Checks) {
    let limits = Limits::default();
    let mut incoming = Incoming::announced(&header().encode().unwrap(), &limits).unwrap();
    // As a digested state is put together.
    let mut data: Vec<f32> = Vec::with_capacity(1 << 24);
    for _ in 0..FRAMES {
        if matches!(checks, Checks::None) {
            let mut header = [0; HEADER];
            input.read_exact(&mut header).unwrap();
            let mut values = vec![0f32; PART_ELEMENTS];
            input.read_exact(bytemuck::cast_slice_mut(&mut values)).unwrap();
            data.extend_from_slice(&values);
            continue;
        }
        let Frame::Part(unit, step, values) = Frame::read(&mut input, &limits).unwrap() else {
            panic!("another frame");
        };
        if matches!(checks, Checks::Digest) {
            incoming.extend(unit, step, &values).unwrap();
        } else {
            data.extend_from_slice(&values);
        }
    }
    let Frame::End(unit, step, digest) = Frame::read(&mut input, &limits).unwrap() else {
        panic!("another frame");
    };
    if matches!(checks, Checks::Digest) {
        let _ = incoming.finish(unit, step, &digest).unwrap();
    }
}

/// Processor time of this process, milliseconds.
fn processor_ms() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as f64 * 1e3 + spent.tv_nsec as f64 / 1e6
}

/// Time and processor time, milliseconds, of frames from one thread to another.
fn measured(out: impl Write + Send + 'static, input: impl Read, checks: Checks) -> (f64, f64) {
    let (start, before) = (Instant::now(), processor_ms());
    let sender = std::thread::spawn(move || send(out, checks));
    receive(input, checks);
    sender.join().unwrap();
    (start.elapsed().as_secs_f64() * 1e3, processor_ms() - before)
}

/// One turn, without the handshake where there is one: a connection has one for all of its frames.
fn turn(checks: Checks) -> (f64, f64) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let input = listener.accept().unwrap().0;
    // As a worker reads.
    let buffered = |input| BufReader::with_capacity(1 << 16, input);
    if !matches!(checks, Checks::Tls) {
        return measured(out, buffered(input), checks);
    }
    let accepting = std::thread::spawn(move || Tls::new().unwrap().accept(input).unwrap());
    let out = Tls::new().unwrap().dial(out).unwrap();
    let accepted = accepting.join().unwrap();
    let (session, input) = accepted.apart();
    measured(out, session.on(buffered(input)), checks)
}

/// Median, lower and upper quartile.
fn quartiles(mut of: Vec<f64>) -> (f64, f64, f64) {
    of.sort_by(f64::total_cmp);
    (of[of.len() / 2], of[of.len() / 4], of[of.len() * 3 / 4])
}

/// Measures the throughput of one thread.
fn alone(what: &str, of: impl Fn(&[f32])) {
    let values = vec![1.5f32; PART_ELEMENTS];
    let start = processor_ms();
    (0..FRAMES).for_each(|_| of(&values));
    let rate = f64::from(FRAMES) / (processor_ms() - start) * 1e3;
    println!("{what}: {rate:.0} MiB a second of processor time");
}

fn main() {
    alone("CRC-32C", |values| {
        _ = std::hint::black_box(crc32c::crc32c(bytemuck::cast_slice(values)));
    });
    alone("BLAKE3", |values| {
        _ = std::hint::black_box(blake3::hash(bytemuck::cast_slice(values)));
    });
    let (mut plain, mut summed, mut sealed, mut digested) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        plain.push(turn(Checks::None));
        summed.push(turn(Checks::Checksums));
        sealed.push(turn(Checks::Tls));
        digested.push(turn(Checks::Digest));
    }
    println!("{FRAMES} MiB; medians of {TURNS} turns (ratios to no checks, quartiles)");
    for (what, found) in [
        ("no checks", &plain),
        ("checksums", &summed),
        ("checksums and TLS", &sealed),
        ("checksums and digest", &digested),
    ] {
        let line = |name: &str, of: fn(&(f64, f64)) -> f64| {
            let ratios = found
                .iter()
                .zip(&plain)
                .map(|(with, without)| of(with) / of(without));
            let (ms, _, _) = quartiles(found.iter().map(of).collect());
            let (ratio, low, high) = quartiles(ratios.collect());
            println!("{what}: {name} {ms:.1} ms, ratio {ratio:.3} ({low:.3} - {high:.3})");
        };
        line("time", |turn| turn.0);
        line("processor time", |turn| turn.1);
    }
    // What the switch costs: with the checksums, which are always there, on both sides of the ratio.
    let pairs = sealed.iter().zip(&summed);
    let (ratio, low, high) = quartiles(pairs.map(|(with, without)| with.1 / without.1).collect());
    println!("TLS: processor time to that of checksums alone, ratio {ratio:.3} ({low:.3} - {high:.3})");
    println!("RESULT data_plane_tls_processor_ratio {ratio:.3}");
}
