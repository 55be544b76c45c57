//! Groups: the operations that a thread issues between the start and the end of a group are put into streams together.

use crate::communicator::{Communicator, IN_PROGRESS, INVALID_USAGE, Operation, SUCCESS};
use crate::connection::Connection;
use crate::stream::Stream;
use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

/// Time that it takes to connect ranks, before an operation is put into its stream.
const CONNECTS: Duration = Duration::from_millis(2);

/// The operations that are issued together over one communicator.
struct Part {
    communicator: Arc<Communicator>,
    stream: Arc<Stream>,
    operations: Vec<Operation>,
}

#[derive(Default)]
struct Group {
    depth: u32,
    parts: Vec<Part>,
    failed: c_int,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

pub(crate) fn start() -> c_int {
    GROUP.with_borrow_mut(|group| group.depth += 1);
    SUCCESS
}

pub(crate) fn end() -> c_int {
    let parts = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Err(INVALID_USAGE);
        }
        group.depth -= 1;
        if group.depth > 0 {
            return Ok(Vec::new());
        }
        let (parts, failed) = (
            std::mem::take(&mut group.parts),
            std::mem::take(&mut group.failed),
        );
        if failed == SUCCESS { Ok(parts) } else { Err(failed) }
    });
    match parts {
        Ok(parts) => launch(parts),
        Err(code) => code,
    }
}

/// Adds an operation to this thread's group, or issues it alone.
pub(crate) fn add(communicator: Arc<Communicator>, stream: Arc<Stream>, operation: Operation) -> c_int {
    let alone = GROUP.with_borrow_mut(|group| {
        let same = |p: &&mut Part| Arc::ptr_eq(&p.communicator, &communicator);
        match group.parts.iter_mut().find(same) {
            _ if group.depth == 0 => {}
            // NCCL would synchronise the streams, but no code here needs that.
            Some(part) if !Arc::ptr_eq(&part.stream, &stream) => group.failed = INVALID_USAGE,
            Some(part) => part.operations.push(operation),
            None => group.parts.push(Part {
                communicator: Arc::clone(&communicator),
                stream: Arc::clone(&stream),
                operations: vec![operation],
            }),
        }
        group.depth == 0
    });
    match alone {
        true => launch(vec![Part {
            communicator,
            stream,
            operations: vec![operation],
        }]),
        false => SUCCESS,
    }
}

/// Puts all operations into their streams. If connections are missing, this happens in the background, once all ranks that they need are
/// ready.
fn launch(parts: Vec<Part>) -> c_int {
    let parts: Vec<(Part, u64, Vec<Connection>)> = parts
        .into_iter()
        .map(|part| {
            let (turn, new) = (
                part.communicator.issue(),
                part.communicator.connect(&part.operations),
            );
            (part, turn, new)
        })
        .collect();
    let push = |part: Part, turn| {
        let Part {
            communicator,
            stream,
            operations,
        } = part;
        stream.push(move || communicator.run(turn, &operations));
    };
    if parts.iter().all(|(_, _, new)| new.is_empty()) {
        parts.into_iter().for_each(|(part, turn, _)| push(part, turn));
        return SUCCESS;
    }
    for (part, _, new) in &parts {
        part.communicator.set_state(IN_PROGRESS);
        part.communicator.announce(new);
    }
    std::thread::spawn(move || {
        std::thread::sleep(CONNECTS);
        for (part, turn, new) in parts {
            let communicator = Arc::clone(&part.communicator);
            communicator.meet(&new);
            push(part, turn);
            communicator.finish_setup();
        }
    });
    IN_PROGRESS
}
