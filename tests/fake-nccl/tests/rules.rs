//! The rules of communicators, streams and events, with the fake libraries and all ranks in one process.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests; what fails here fails the test"
)]

use half::{bf16, f16};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use varuna_cuda::{
    Action, Communicator, Context, CudaError, DeviceBuffer, Element, Libraries, Membership, NcclError,
    Operation, Pending, Pinned, Reaper, Stream, UniqueId, init, issue, quiesce, revoke,
};

type Memory = Arc<DeviceBuffer>;
type Encode = fn(f32) -> Vec<u8>;
type Round = fn(f32) -> f32;

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(100)
}

/// A device, with its context and reaper.
struct Device {
    context: Arc<Context>,
    reaper: Arc<Reaper>,
}

impl Device {
    fn open() -> Device {
        // The library is in the folder of this test's program.
        let programs = std::env::current_exe().unwrap();
        let library = programs.with_file_name("libvaruna_fake_nccl.so");
        let libraries = Libraries::load_from(&library).unwrap();
        Device {
            context: Context::open(&libraries, 0).unwrap(),
            reaper: Reaper::start().unwrap(),
        }
    }

    /// The ranks of a new communicator.
    fn ranks(&self, ranks: u32) -> Vec<Communicator> {
        let all: Vec<Membership> = memberships(&self.context, ranks);
        init(
            &self.context,
            &self.reaper,
            &all,
            &AtomicBool::new(false),
            later(),
        )
        .unwrap()
    }

    /// The ranks of a new communicator in which each rank has received a message from each other rank. After that, one thread may issue for
    /// all ranks.
    fn connected(&self, ranks: u32) -> Vec<Communicator> {
        let all = self.ranks(ranks);
        let exchange = |own: &Communicator| {
            let stream = self.stream();
            let memory = || Arc::new(DeviceBuffer::new(&self.context, 4).unwrap());
            let others = (0..ranks).filter(|rank| *rank != own.rank());
            let both = others.flat_map(|rank| [Action::Send { to: rank }, Action::Receive { from: rank }]);
            let operations = both.map(|action| Operation {
                communicator: own,
                action,
                memory: memory(),
                element: Element::Float32,
                stream: &stream,
            });
            let pending = issue(operations.collect(), later()).unwrap();
            pending.iter().for_each(|p| p.wait(later()).unwrap());
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = all.iter().map(|own| scope.spawn(move || exchange(own))).collect();
            threads.into_iter().for_each(|rank| rank.join().unwrap());
        });
        all
    }

    fn stream(&self) -> Stream {
        Stream::new(&self.context).unwrap()
    }

    /// Device memory that the stream fills with these bytes, possibly only after this call.
    fn put(&self, bytes: &[u8], stream: &Stream) -> Memory {
        let mut pinned = Pinned::new(&self.context, bytes.len()).unwrap();
        pinned.as_mut_slice().copy_from_slice(bytes);
        let memory = Arc::new(DeviceBuffer::new(&self.context, bytes.len()).unwrap());
        let copy = pinned.copy_to(Arc::clone(&memory), stream).unwrap();
        // The device still uses the memory, so it is leaked.
        drop(copy);
        memory
    }

    fn get(&self, memory: &Memory, stream: &Stream) -> Vec<u8> {
        let pinned = Pinned::new(&self.context, varuna_cuda::DeviceMemory::bytes(memory)).unwrap();
        let copy = pinned.copy_from(Arc::clone(memory), stream).unwrap();
        copy.finish(later()).unwrap().0.as_slice().to_vec()
    }
}

fn memberships(context: &Arc<Context>, ranks: u32) -> Vec<Membership> {
    let id = UniqueId::draw(context.libraries()).unwrap();
    let of = |rank| Membership {
        id,
        ranks,
        rank,
        blocks_max: Some(2),
    };
    (0..ranks).map(of).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn begin(
    communicator: &Communicator,
    action: Action,
    memory: &Memory,
    element: Element,
    stream: &Stream,
) -> Pending<Memory> {
    let operation = Operation {
        communicator,
        action,
        memory: Arc::clone(memory),
        element,
        stream,
    };
    issue(vec![operation], later()).unwrap().remove(0)
}

/// A sum over these ranks. The first sum begins when all ranks have called it, so each rank has a thread of its own.
fn sum_of(element: Element, ranks: &[(&Communicator, &Memory, &Stream)]) -> Vec<Pending<Memory>> {
    std::thread::scope(|scope| {
        let begun = ranks.iter().map(|(communicator, memory, stream)| {
            scope.spawn(move || begin(communicator, Action::AllReduceSum, memory, element, stream))
        });
        let begun: Vec<_> = begun.collect();
        begun.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_sum_is_the_same_bits_on_all_ranks_in_each_format() {
    let device = Device::open();
    let ranks = device.ranks(3);
    let values = |rank: usize| (0..1000).map(move |i| (i % 31) as f32 * 0.37 + rank as f32 * 1.3);
    let sum = |i: usize, round: Round| {
        let at = |rank| round(values(rank).nth(i).unwrap());
        round(round(at(0) + at(1)) + at(2))
    };
    let formats: [(Element, Encode, Round); 3] = [
        (Element::Float32, |v| v.to_ne_bytes().to_vec(), |v| v),
        (
            Element::Float16,
            |v| f16::from_f32(v).to_ne_bytes().to_vec(),
            |v| f16::from_f32(v).to_f32(),
        ),
        (
            Element::BFloat16,
            |v| bf16::from_f32(v).to_ne_bytes().to_vec(),
            |v| bf16::from_f32(v).to_f32(),
        ),
    ];
    for (element, encode, round) in formats {
        let streams: Vec<Stream> = ranks.iter().map(|_| device.stream()).collect();
        let memory: Vec<Memory> = (0..3)
            .map(|r| device.put(&values(r).flat_map(encode).collect::<Vec<_>>(), &streams[r]))
            .collect();
        let of: Vec<_> = (0..3).map(|r| (&ranks[r], &memory[r], &streams[r])).collect();
        let all = sum_of(element, &of);
        all.iter().for_each(|p| p.wait(later()).unwrap());
        let expected: Vec<u8> = (0..1000).flat_map(|i| encode(sum(i, round))).collect();
        for rank in 0..3 {
            assert_eq!(device.get(&memory[rank], &streams[rank]), expected, "{element:?}");
        }
    }
}

#[test]
fn grouped_sums_and_broadcasts_run_together() {
    let device = Device::open();
    let ranks = device.ranks(3);
    let run = |actions: &[Action]| -> Vec<Vec<Vec<u8>>> {
        std::thread::scope(|scope| {
            let of = |rank: usize| {
                let stream = device.stream();
                let own = |i: usize| bytes(&[(10 * i + rank) as f32 + 0.5; 3]);
                let memory: Vec<Memory> = (0..actions.len()).map(|i| device.put(&own(i), &stream)).collect();
                let operations = actions.iter().zip(&memory).map(|(action, memory)| Operation {
                    communicator: &ranks[rank],
                    action: *action,
                    memory: Arc::clone(memory),
                    element: Element::Float32,
                    stream: &stream,
                });
                let pending = issue(operations.collect(), later()).unwrap();
                pending.iter().for_each(|p| p.wait(later()).unwrap());
                memory.iter().map(|memory| device.get(memory, &stream)).collect()
            };
            let threads: Vec<_> = (0..3).map(|rank| scope.spawn(move || of(rank))).collect();
            threads.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    };
    let (sum, give) = (
        |root| Action::ReduceSum { root },
        |root| Action::Broadcast { root },
    );
    let found = run(&[sum(1), sum(0), give(2)]);
    assert_eq!(found[1][0], bytes(&[4.5; 3]));
    assert_eq!(found[0][1], bytes(&[34.5; 3]));
    for (rank, memory) in found.iter().enumerate() {
        assert_eq!(memory[2], bytes(&[22.5; 3]), "{rank}");
        assert!(
            memory[0] == vec![0xff; 12] || rank == 1,
            "nobody may count on what is left"
        );
    }
}

#[test]
fn who_forgets_to_wait_for_an_event_sums_what_was_there_before() {
    let device = Device::open();
    let (ranks, gate) = (device.connected(2), device.connected(2));
    let (compute, communication, other) = (device.stream(), device.stream(), device.stream());
    let run = |waits: bool| {
        let own = device.put(&bytes(&[1.0; 64]), &communication);
        let theirs = device.put(&bytes(&[2.0; 64]), &other);
        // The buffer is overwritten by work that comes after a later message.
        let message = Arc::new(DeviceBuffer::new(&device.context, 4).unwrap());
        let receive = Action::Receive { from: 0 };
        let shut = begin(&gate[1], receive, &message, Element::Float32, &compute);
        let mut pinned = Pinned::new(&device.context, 256).unwrap();
        pinned.as_mut_slice().copy_from_slice(&bytes(&[5.0; 64]));
        let renewed = pinned.copy_to(Arc::clone(&own), &compute).unwrap();
        if waits {
            communication.wait(&compute.record().unwrap()).unwrap();
        }
        let of = [(&ranks[0], &own, &communication), (&ranks[1], &theirs, &other)];
        let sums = sum_of(Element::Float32, &of);
        if !waits {
            sums.iter().for_each(|s| s.wait(later()).unwrap());
        }
        let open = begin(
            &gate[0],
            Action::Send { to: 1 },
            &message,
            Element::Float32,
            &device.stream(),
        );
        [&open, &shut].into_iter().for_each(|p| p.wait(later()).unwrap());
        sums.iter().for_each(|s| s.wait(later()).unwrap());
        drop(renewed.finish(later()).unwrap());
        device.get(&theirs, &other)
    };
    assert_eq!(run(true), bytes(&[7.0; 64]));
    assert_eq!(run(false), bytes(&[3.0; 64]));
}

#[test]
fn messages_meet_in_the_order_in_which_they_are_issued() {
    let device = Device::open();
    let ranks = device.connected(2);
    let (out, back) = (device.stream(), device.stream());
    let sent: Vec<Memory> = (0..5).map(|i| device.put(&bytes(&[i as f32; 9]), &out)).collect();
    let taken: Vec<Memory> = (0..5).map(|_| device.put(&bytes(&[-1.0; 9]), &back)).collect();
    let send = |m| begin(&ranks[0], Action::Send { to: 1 }, m, Element::Float32, &out);
    let take = |m| begin(&ranks[1], Action::Receive { from: 0 }, m, Element::Float32, &back);
    let all: Vec<_> = sent.iter().map(send).chain(taken.iter().map(take)).collect();
    all.iter().for_each(|p| p.wait(later()).unwrap());
    for (i, memory) in taken.iter().enumerate() {
        assert_eq!(device.get(memory, &back), bytes(&[i as f32; 9]));
    }
}

#[test]
fn different_counts_fail_on_both_sides() {
    let device = Device::open();
    let ranks = device.connected(2);
    let (out, back) = (device.stream(), device.stream());
    let (sent, taken) = (device.put(&[0; 16], &out), device.put(&[0; 12], &back));
    let send = begin(&ranks[0], Action::Send { to: 1 }, &sent, Element::Float32, &out);
    let take = begin(
        &ranks[1],
        Action::Receive { from: 0 },
        &taken,
        Element::Float32,
        &back,
    );
    for pending in [&send, &take] {
        let why = pending.wait(later()).unwrap_err().to_string();
        assert_eq!(
            why,
            "in the background: invalid usage (error 5 of NCCL); the fake keeps no messages"
        );
    }
    revoke(&ranks).unwrap();
    assert!(send.release(later()).is_some() && take.release(later()).is_some());
}

/// The beginning of 1F1B between two stages: the first stage sends two activations before it receives a gradient; the second answers each
/// activation with a gradient.
fn one_forward_one_backward(
    device: &Device,
    down: &[Communicator],
    up: &[Communicator],
) -> Vec<Pending<Memory>> {
    let memory = || Arc::new(DeviceBuffer::new(&device.context, 64).unwrap());
    let streams: Vec<Stream> = (0..4).map(|_| device.stream()).collect();
    let float = Element::Float32;
    vec![
        begin(&down[0], Action::Send { to: 1 }, &memory(), float, &streams[0]),
        begin(&down[0], Action::Send { to: 1 }, &memory(), float, &streams[0]),
        begin(&up[0], Action::Receive { from: 1 }, &memory(), float, &streams[1]),
        begin(
            &down[1],
            Action::Receive { from: 0 },
            &memory(),
            float,
            &streams[2],
        ),
        begin(&up[1], Action::Send { to: 0 }, &memory(), float, &streams[3]),
        begin(
            &down[1],
            Action::Receive { from: 0 },
            &memory(),
            float,
            &streams[2],
        ),
    ]
}

#[test]
fn shared_communicator_for_both_directions_deadlocks() {
    let device = Device::open();
    let (down, up) = (device.connected(2), device.connected(2));
    for pending in one_forward_one_backward(&device, &down, &up) {
        pending.wait(later()).unwrap();
    }
    let both = device.connected(2);
    let all = one_forward_one_backward(&device, &both, &both);
    let stands = |p: &Pending<Memory>| p.wait(soon()) == Err(NcclError::Deadline { what: "an operation" });
    assert!(all.iter().any(stands));
    revoke(&both).unwrap();
    assert!(all.into_iter().all(|p| p.release(later()).is_some()));
}

#[test]
fn a_group_runs_at_once_so_that_two_ranks_can_exchange() {
    let device = Device::open();
    let ranks = device.connected(2);
    let streams = [device.stream(), device.stream()];
    let pairs: Vec<_> = (0..2)
        .map(|r| {
            let own = device.put(&bytes(&[r as f32; 8]), &streams[r]);
            (own, device.put(&bytes(&[9.0; 8]), &streams[r]))
        })
        .collect();
    let operation = |r: usize, action, memory: &Memory| Operation {
        communicator: &ranks[r],
        action,
        memory: Arc::clone(memory),
        element: Element::Float32,
        stream: &streams[r],
    };
    let mut all = Vec::new();
    for (r, peer) in [(0, 1), (1, 0)] {
        let send = operation(r, Action::Send { to: peer }, &pairs[r].0);
        let take = operation(r, Action::Receive { from: peer }, &pairs[r].1);
        all.extend(issue(vec![send, take], later()).unwrap());
    }
    all.iter().for_each(|p| p.wait(later()).unwrap());
    for (r, other) in [(0, 1.0), (1, 0.0)] {
        assert_eq!(device.get(&pairs[r].1, &streams[r]), bytes(&[other; 8]));
    }
}

#[test]
fn what_was_done_before_a_revoke_stays_done_and_nothing_else_is() {
    let device = Device::open();
    let ranks = device.connected(2);
    let streams = [device.stream(), device.stream()];
    let memory: Vec<Memory> = (0..2)
        .map(|r| device.put(&bytes(&[1.5; 8]), &streams[r]))
        .collect();
    let of = [0, 1].map(|r| (&ranks[r], &memory[r], &streams[r]));
    let [first, theirs] = <[_; 2]>::try_from(sum_of(Element::Float32, &of)).ok().unwrap();
    theirs.wait(later()).unwrap();
    first.event().unwrap().wait("the sum", later()).unwrap();
    let alone = Arc::new(DeviceBuffer::new(&device.context, 32).unwrap());
    let second = begin(
        &ranks[0],
        Action::AllReduceSum,
        &alone,
        Element::Float32,
        &streams[0],
    );
    revoke(&ranks).unwrap();
    assert_eq!(
        first.is_done(),
        Ok(true),
        "nobody had asked before, but it was done"
    );
    assert_eq!(second.is_done(), Err(NcclError::Revoked));
    assert_eq!(second.wait(later()), Err(NcclError::Revoked));
    assert!(
        second.release(later()).is_some(),
        "the device lets go of its memory"
    );
    // The stream continues, and the memory of the lost operation has undefined content, but not a sum.
    assert_eq!(device.get(&memory[0], &streams[0]), bytes(&[3.0; 8]));
    assert_eq!(device.get(&alone, &streams[0]), vec![0xff; 32]);
    let refused = issue(
        vec![Operation {
            communicator: &ranks[0],
            action: Action::AllReduceSum,
            memory: alone,
            element: Element::Float32,
            stream: &streams[0],
        }],
        later(),
    );
    let refused = refused.err().unwrap();
    assert_eq!((refused.error, refused.memory.len()), (NcclError::Revoked, 1));
    assert_eq!(revoke(&ranks), Ok(()), "a second fence changes nothing");
    assert_eq!(quiesce(&ranks, later()), Ok(()));
    drop((first, theirs, ranks));
    assert!(device.reaper.wait_until_idle(later()));
}

#[test]
fn first_message_waits_for_its_receiver() {
    let device = Device::open();
    let ranks = device.ranks(2);
    let (out, back) = (device.stream(), device.stream());
    let (sent, taken) = (device.put(&[7; 16], &out), device.put(&[0; 16], &back));
    let operation = Operation {
        communicator: &ranks[0],
        action: Action::Send { to: 1 },
        memory: Arc::clone(&sent),
        element: Element::Float32,
        stream: &out,
    };
    // No rank receives: the sender's communicator is revoked, and its memory is free again.
    let late = issue(vec![operation], soon()).unwrap().remove(0);
    let what = "the connection of two ranks";
    assert_eq!(late.is_done(), Err(NcclError::Deadline { what }));
    assert!(late.release(later()).is_some());
    let ranks = device.connected(2);
    let float = Element::Float32;
    let both = [
        begin(&ranks[0], Action::Send { to: 1 }, &sent, float, &out),
        begin(&ranks[1], Action::Receive { from: 0 }, &taken, float, &back),
    ];
    both.iter().for_each(|p| p.wait(later()).unwrap());
    assert_eq!(device.get(&taken, &back), vec![7; 16]);
}

#[test]
fn released_memory_belongs_to_the_caller() {
    let device = Device::open();
    let mut met = 0;
    // It depends on timing whether the revoke comes before the operation or while its ranks connect. This repeats until the latter has
    // happened.
    for _ in 0..200 {
        let (ranks, stream) = (device.ranks(2), device.stream());
        let memory = device.put(&bytes(&[1.5; 8]), &stream);
        let start = Arc::new(std::sync::Barrier::new(2));
        let (own, begins) = (ranks.clone(), Arc::clone(&start));
        let fence = std::thread::spawn(move || {
            begins.wait();
            revoke(&own)
        });
        start.wait();
        let operation = Operation {
            communicator: &ranks[0],
            action: Action::AllReduceSum,
            memory: Arc::clone(&memory),
            element: Element::Float32,
            stream: &stream,
        };
        let issued = issue(vec![operation], later());
        fence.join().unwrap().unwrap();
        let Ok(mut issued) = issued else { continue };
        met += 1;
        assert!(issued.remove(0).release(later()).is_some());
        let released = device.get(&memory, &stream);
        quiesce(&ranks, later()).unwrap();
        assert_eq!(
            device.get(&memory, &stream),
            released,
            "written to after its release"
        );
        if met == 3 {
            break;
        }
    }
    assert!(met > 0, "no revoke came while ranks connected");
}

#[test]
fn missing_rank_ends_setup_by_deadline_or_stop() {
    let device = Device::open();
    let make = |stop: bool, deadline| {
        let first = memberships(&device.context, 2).remove(0);
        let stop = AtomicBool::new(stop);
        init(&device.context, &device.reaper, &[first], &stop, deadline).err()
    };
    let what = "the initialization of a communicator";
    assert_eq!(make(false, soon()), Some(NcclError::Deadline { what }));
    assert_eq!(make(true, later()), Some(NcclError::Revoked));
    assert!(device.reaper.wait_until_idle(later()), "what was begun is freed");
}

#[test]
fn wrong_arguments_are_named_with_what_is_allowed() {
    let device = Device::open();
    let ranks = device.ranks(2);
    let stream = device.stream();
    let refuse = |action, bytes: usize| {
        let memory = Arc::new(DeviceBuffer::new(&device.context, bytes).unwrap());
        let operation = Operation {
            communicator: &ranks[0],
            action,
            memory,
            element: Element::Float32,
            stream: &stream,
        };
        issue(vec![operation], later()).err().unwrap().error.to_string()
    };
    assert_eq!(
        refuse(Action::AllReduceSum, 6),
        "the memory's length is 6; allowed is a multiple of 4 bytes"
    );
    for peer in [0, 2] {
        let expected = format!("the peer is {peer}; allowed is another rank than 0, below 2");
        assert_eq!(refuse(Action::Send { to: peer }, 4), expected);
    }
    for action in [Action::ReduceSum { root: 2 }, Action::Broadcast { root: 2 }] {
        assert_eq!(refuse(action, 4), "the root is 2; allowed is below 2");
    }
    let mut wrong = memberships(&device.context, 2).remove(0);
    wrong.rank = 2;
    let made = init(
        &device.context,
        &device.reaper,
        &[wrong],
        &AtomicBool::new(false),
        later(),
    );
    assert_eq!(
        made.err().unwrap().to_string(),
        "rank is 2; allowed is a number below the 2 ranks"
    );
    let missing = Context::open(device.context.libraries(), 3).err();
    assert_eq!(missing, Some(CudaError::NoDevice { number: 3, count: 1 }));
    let memory = DeviceBuffer::new(&device.context, 9).unwrap();
    let copied = Pinned::new(&device.context, 8)
        .unwrap()
        .copy_to(memory, &stream)
        .err();
    assert_eq!(copied, Some(CudaError::TooLong { device: 9, host: 8 }));
}

#[test]
fn driver_works_without_nccl() {
    let driver = std::env::current_exe()
        .unwrap()
        .with_file_name("libvaruna_fake_nccl.so");
    let open = |nccl: &str| Libraries::load_from_two(&driver, nccl.as_ref()).unwrap();
    let why = |libraries: &Libraries| libraries.require_nccl().unwrap_err().to_string();
    let absent = open("libvaruna-absent.so.2");
    let expected = "NCCL is not here; tried libvaruna-absent.so.2 (";
    assert!(why(&absent).starts_with(expected), "{}", why(&absent));
    // The C library exists on every machine and lacks these functions, like an NCCL that is too old.
    let expected = "NCCL (libc.so.6) has no function ncclGetUniqueId; NCCL 2.28.9 or later is needed";
    assert_eq!(why(&open("libc.so.6")), expected);
    let context = Context::open(&absent, 0).unwrap();
    assert!(
        Stream::new(&context).unwrap().record().is_ok(),
        "the driver works"
    );
    assert!(matches!(UniqueId::draw(&absent), Err(NcclError::Absent(_))));
    assert_eq!(open(driver.to_str().unwrap()).require_nccl(), Ok(()));
}
