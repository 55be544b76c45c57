//! How a worker introduces itself.

use crate::address;
use crate::error::{WireError, need};
use crate::version::{VERSIONS, of_message};
use crate::{TEXT_BYTES_MAX, v1};
use v1::hardware::Kind as WireHardware;
use varuna_plan::device::Hardware;
use varuna_plan::{ScoreMemory, WorkerId};

/// Upper limit for one sample in one block: no device holds more, and sums over micro-batches and blocks could overflow.
const SCORE_BYTES_MAX: u64 = 1 << 40;

/// How a worker introduces itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// Identity of the process; never 0.
    pub worker: WorkerId,
    /// Short name for people.
    pub name: String,
    /// Where its data plane listens (`host:port`).
    pub address: String,
    /// Failure domain.
    pub node: String,
    /// The host on which its process id is valid ([`process_host`](crate::process_host)).
    pub host: String,
    /// Process id there.
    pub pid: u32,
    /// The hardware that it computes on, as its driver reports it; none before it has the job, which may determine it.
    pub hardware: Option<Hardware>,
    /// Number of workers that share its GPU, itself included; 0 if it does not report the number, as older builds do.
    pub workers_on_gpu: u32,
    /// Memory that training may use (bytes); none = not limited.
    pub memory_bytes: Option<u64>,
    /// Host memory that spare copies may use, if it keeps them there and not in the memory of training (bytes).
    pub copies_bytes: Option<u64>,
    /// Memory that its attention needs for scores that it materialises; none if it materialises none or does not report it. Each figure is
    /// at most 2^40.
    pub scores: Option<ScoreMemory>,
    /// What it computes on, for people.
    pub device: String,
    /// Speed relative to the nominal device, above 0.
    pub speed: f64,
    /// The identity of the run that this process is of; empty on its first stream.
    pub run: String,
}

pub(crate) fn hello_to_wire(hello: &Hello) -> v1::Hello {
    v1::Hello {
        protocol_version: VERSIONS.newest,
        oldest_protocol_version: VERSIONS.oldest,
        worker_id: hello.worker.0,
        name: hello.name.clone(),
        address: hello.address.clone(),
        node: hello.node.clone(),
        host: hello.host.clone(),
        pid: hello.pid,
        memory_bytes: hello.memory_bytes,
        spare_copies_bytes: hello.copies_bytes,
        scores: hello.scores.map(scores_to_wire),
        hardware: hello.hardware.as_ref().map(hardware_to_wire),
        workers_on_gpu: hello.workers_on_gpu,
        device: hello.device.clone(),
        speed: hello.speed,
        run: hello.run.clone(),
    }
}

pub(crate) fn read_hello(hello: v1::Hello) -> Result<Hello, WireError> {
    const M: &str = "Hello";
    // This comes first: the other fields may have another meaning in another version.
    WireError::unless_common(of_message(hello.oldest_protocol_version, hello.protocol_version))?;
    if hello.worker_id == 0 {
        return Err(WireError::value(M, "worker_id", 0, "any number but 0"));
    }
    let texts = [
        ("name", &hello.name, 1),
        ("address", &hello.address, 3),
        ("node", &hello.node, 0),
        ("host", &hello.host, 0),
        ("device", &hello.device, 0),
        ("run", &hello.run, 0),
    ];
    for (field, text, least) in texts {
        check_text(M, field, text, least)?;
    }
    let port = address::split(&hello.address).map(|(_, port)| port);
    if port.is_none_or(|port| port == 0) {
        return Err(WireError::value(
            M,
            "address",
            format!("{:?}", hello.address),
            "host:port, an IPv6 address in brackets",
        ));
    }
    if !(hello.speed.is_finite() && hello.speed > 0.0) {
        return Err(WireError::value(
            M,
            "speed",
            hello.speed,
            "a finite number above 0",
        ));
    }
    Ok(Hello {
        worker: WorkerId(hello.worker_id),
        name: hello.name,
        address: hello.address,
        node: hello.node,
        host: hello.host,
        pid: hello.pid,
        hardware: hello.hardware.map(read_hardware).transpose()?,
        workers_on_gpu: hello.workers_on_gpu,
        memory_bytes: hello.memory_bytes,
        copies_bytes: hello.spare_copies_bytes,
        scores: hello.scores.map(read_scores).transpose()?,
        device: hello.device,
        speed: hello.speed,
        run: hello.run,
    })
}

fn scores_to_wire(scores: ScoreMemory) -> v1::ScoreMemory {
    v1::ScoreMemory {
        saved_bytes: scores.saved_bytes,
        forward_bytes: scores.forward_bytes,
        backward_bytes: scores.backward_bytes,
    }
}

fn read_scores(scores: v1::ScoreMemory) -> Result<ScoreMemory, WireError> {
    let fields = [
        ("saved_bytes", scores.saved_bytes),
        ("forward_bytes", scores.forward_bytes),
        ("backward_bytes", scores.backward_bytes),
    ];
    for (field, bytes) in fields {
        if bytes > SCORE_BYTES_MAX {
            return Err(WireError::value("ScoreMemory", field, bytes, "at most 2^40"));
        }
    }
    let [saved_bytes, forward_bytes, backward_bytes] = fields.map(|(_, bytes)| bytes);
    Ok(ScoreMemory {
        saved_bytes,
        forward_bytes,
        backward_bytes,
    })
}

fn hardware_to_wire(hardware: &Hardware) -> v1::Hardware {
    let kind = match hardware {
        Hardware::Processor => WireHardware::Processor(v1::Processor {}),
        Hardware::Gpu { name, memory_bytes } => WireHardware::Gpu(v1::Gpu {
            name: name.clone(),
            memory_bytes: *memory_bytes,
        }),
    };
    v1::Hardware { kind: Some(kind) }
}

fn read_hardware(hardware: v1::Hardware) -> Result<Hardware, WireError> {
    Ok(match need(hardware.kind, "Hardware", "kind")? {
        WireHardware::Processor(v1::Processor {}) => Hardware::Processor,
        WireHardware::Gpu(v1::Gpu { name, memory_bytes }) => {
            check_text("Gpu", "name", &name, 0)?;
            Hardware::Gpu { name, memory_bytes }
        }
    })
}

/// Checks that a text is a single line with a length between `least` and the maximum, in bytes.
fn check_text(message: &'static str, field: &'static str, text: &str, least: usize) -> Result<(), WireError> {
    if text.len() < least || text.len() > TEXT_BYTES_MAX || text.contains(char::is_control) {
        let shown: String = text.chars().take(40).collect();
        let allowed = match least {
            0 => "a line of at most 256 bytes",
            1 => "a line of 1 to 256 bytes",
            _ => "host:port, a line of at most 256 bytes",
        };
        return Err(WireError::value(message, field, format!("{shown:?}"), allowed));
    }
    Ok(())
}
