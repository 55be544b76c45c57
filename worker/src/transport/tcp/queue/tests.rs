use super::*;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use varuna_frames::{GradientHeader, StateHeader};
use varuna_plan::{Decision, StateId, Step, Unit};

/// Timeout of all waits.
const PATIENCE: Duration = Duration::from_secs(60);

fn frame(queue: &Queue) -> Option<Frame> {
    queue.pop().map(|(frame, _)| frame)
}

fn transfer(queue: &Queue, unit: u32, elements: usize) {
    transfer_of(queue, unit, Box::new(vec![unit as f32; elements]));
}

fn transfer_of(queue: &Queue, unit: u32, source: Box<dyn StateSource>) {
    let header = StateHeader {
        unit: Unit(unit),
        id: StateId::INITIAL,
        decision: None,
        progress: varuna_plan::OptimizerProgress::START,
        elements: source.elements() as u64,
    };
    let (encoded, header) = (vec![u8::try_from(unit).unwrap()], TransferHeader::State(header));
    assert!(queue.push_transfer(encoded, header, source));
}

/// A source with one element. It reports when it is read, and returns when it is allowed to.
struct SlowSource {
    begun: Sender<()>,
    proceed: Receiver<()>,
}

impl StateSource for SlowSource {
    fn elements(&self) -> usize {
        1
    }
    fn range(&self, _: usize, _: usize) -> Result<Vec<f32>, TorchError> {
        self.begun.send(()).unwrap();
        self.proceed.recv().unwrap();
        Ok(vec![1.0])
    }
}

/// A queue whose writer is reading a transfer of unit 1. Also returns the channel that lets it continue, and the thread with the frame
/// that it then takes.
fn reading() -> (Arc<Queue>, Sender<()>, JoinHandle<Option<Frame>>) {
    let queue = Arc::new(Queue::default());
    let ((tell, begun), (let_proceed, proceed)) = (channel(), channel());
    transfer_of(&queue, 1, Box::new(SlowSource { begun: tell, proceed }));
    assert_eq!(frame(&queue), Some(Frame::State(vec![1])));
    let own = Arc::clone(&queue);
    let writer = std::thread::spawn(move || frame(&own));
    begun.recv_timeout(PATIENCE).unwrap();
    (queue, let_proceed, writer)
}

/// Runs this on another thread, and checks that it does not block.
fn at_once(queue: &Arc<Queue>, what: impl FnOnce(&Queue) + Send + 'static) {
    let ((tell, done), own) = (channel(), Arc::clone(queue));
    std::thread::spawn(move || {
        what(&own);
        tell.send(()).unwrap();
    });
    done.recv_timeout(PATIENCE)
        .expect("nobody waits for the device that a transfer is read from");
}

fn gradient(queue: &Queue, unit: u32, elements: usize) {
    let header = GradientHeader {
        unit: Unit(unit),
        decision: Decision {
            parent: StateId::INITIAL,
            id: StateId::INITIAL,
            norm2: 1.0,
            overflow: false,
            before: varuna_plan::OptimizerProgress::START,
            loss: 1.0,
            eval_loss: None,
            switch: None,
        },
        elements: elements as u64,
    };
    let (encoded, header) = (
        vec![u8::try_from(unit).unwrap()],
        TransferHeader::Gradient(header),
    );
    assert!(queue.push_transfer(encoded, header, Box::new(vec![unit as f32; elements])));
}

#[test]
fn tensors_overtake_transfers_and_transfers_never_mix() {
    let queue = Queue::default();
    transfer(&queue, 1, PART + 1);
    transfer(&queue, 2, 0);
    transfer(&queue, 3, 1);
    assert_eq!(frame(&queue), Some(Frame::State(vec![1])));
    queue.push_message(vec![9]);
    assert_eq!(frame(&queue), Some(Frame::Message(vec![9])));
    assert_eq!(
        frame(&queue),
        Some(Frame::Part(Unit(1), Step(0), vec![1.0; PART]))
    );
    assert_eq!(frame(&queue), Some(Frame::Part(Unit(1), Step(0), vec![1.0])));
    let end = |unit: u32, elements: usize| {
        let mut digester = Digester::new(&[u8::try_from(unit).unwrap()]);
        digester.add(&vec![unit as f32; elements]);
        Some((
            Frame::End(Unit(unit), Step(0), digester.digest()),
            Some(Sent::State(Unit(unit))),
        ))
    };
    assert_eq!(queue.pop(), end(1, PART + 1));
    assert_eq!(frame(&queue), Some(Frame::State(vec![2])));
    assert_eq!(queue.pop(), end(2, 0));
    assert_eq!(frame(&queue), Some(Frame::State(vec![3])));
    assert_eq!(frame(&queue), Some(Frame::Part(Unit(3), Step(0), vec![3.0])));
    assert_eq!(queue.pop(), end(3, 1));
}

#[test]
fn frames_are_added_while_a_transfer_is_read() {
    let (queue, let_proceed, writer) = reading();
    at_once(&queue, |queue| queue.push_message(vec![9]));
    at_once(&queue, |queue| transfer(queue, 2, 1));
    let_proceed.send(()).unwrap();
    let part = |unit: u32| Some(Frame::Part(Unit(unit), Step(0), vec![unit as f32]));
    assert_eq!(writer.join().unwrap(), part(1));
    assert_eq!(frame(&queue), Some(Frame::Message(vec![9])));
    // The element that was read keeps its place before all others.
    assert_eq!(queue.pop().unwrap().1, Some(Sent::State(Unit(1))));
    assert_eq!(frame(&queue), Some(Frame::State(vec![2])));
    assert_eq!(frame(&queue), part(2));
}

#[test]
fn a_transfer_that_is_dropped_while_it_is_read_is_not_sent_on() {
    let (queue, let_proceed, writer) = reading();
    at_once(&queue, Queue::close);
    let_proceed.send(()).unwrap();
    assert_eq!(writer.join().unwrap(), None);
    let (queue, let_proceed, writer) = reading();
    at_once(&queue, |queue| {
        queue.drop_states();
        transfer(queue, 2, 0);
    });
    let_proceed.send(()).unwrap();
    assert_eq!(writer.join().unwrap(), Some(Frame::State(vec![2])));
    assert_eq!(queue.pop().unwrap().1, Some(Sent::State(Unit(2))));
}

/// What a thread returns, which must end.
fn ended<T: Send + 'static>(thread: JoinHandle<T>) -> T {
    let (tell, done) = channel();
    std::thread::spawn(move || tell.send(thread.join().unwrap()));
    done.recv_timeout(PATIENCE).expect("there is something to send")
}

fn message(queue: &Queue) {
    queue.push_message(vec![9]);
    assert_eq!(frame(queue), Some(Frame::Message(vec![9])));
}

#[test]
fn receiver_forgets_a_transfer_that_was_stopped() {
    let queue = Arc::new(Queue::default());
    // Nothing of it was sent.
    transfer(&queue, 1, 1);
    queue.drop_states();
    message(&queue);
    transfer(&queue, 2, PART + 1);
    assert_eq!(frame(&queue), Some(Frame::State(vec![2])));
    assert!(matches!(frame(&queue), Some(Frame::Part(..))));
    queue.drop_states();
    message(&queue);
    let own = Arc::clone(&queue);
    let again = ended(std::thread::spawn(move || frame(&own)));
    assert_eq!(again, Some(Frame::State(vec![2])), "in place of its parts");
    message(&queue);
    // Another transfer follows, whose announcement has the same effect.
    transfer(&queue, 3, 1);
    assert_eq!(frame(&queue), Some(Frame::State(vec![3])));
    queue.drop_states();
    transfer(&queue, 4, 0);
    assert_eq!(frame(&queue), Some(Frame::State(vec![4])));
    assert_eq!(queue.pop().unwrap().1, Some(Sent::State(Unit(4))));
    // The device is read for one that is dropped meanwhile.
    let (queue, let_proceed, writer) = reading();
    at_once(&queue, Queue::drop_states);
    let_proceed.send(()).unwrap();
    assert_eq!(ended(writer), Some(Frame::State(vec![1])));
}

#[test]
fn gradient_follows_the_copy_before_it() {
    let queue = Queue::default();
    transfer(&queue, 1, 1);
    gradient(&queue, 1, 1);
    let sent = |_| queue.pop().unwrap();
    let frames: Vec<(Frame, Option<Sent>)> = (0..6).map(sent).collect();
    assert_eq!(frames[0].0, Frame::State(vec![1]));
    assert_eq!(frames[2].1, Some(Sent::State(Unit(1))));
    assert_eq!(frames[3].0, Frame::UnitGradient(vec![1]));
    assert_eq!(frames[4].0, Frame::Part(Unit(1), Step(0), vec![1.0]));
    assert_eq!(frames[5].1, Some(Sent::Gradient(Unit(1))));
}

#[test]
fn full_queue_waits_until_the_deadline() {
    let queue = Queue::default();
    let tensor = || Frame::Part(Unit(0), Step(0), vec![0.0; BYTES_MAX / 4 + 1]);
    let soon = || Instant::now() + Duration::from_millis(5);
    transfer(&queue, 1, BYTES_MAX / 2);
    assert_eq!(queue.push(tensor(), soon()), Ok(()));
    assert_eq!(queue.push(tensor(), soon()), Err(QueueError::Deadline));
    assert!(frame(&queue).is_some());
    assert_eq!(queue.push(tensor(), soon()), Ok(()));
    queue.close();
    assert_eq!(queue.push(tensor(), soon()), Err(QueueError::Closed));
    assert_eq!(frame(&queue), None);
}
