//! One rank as a process that a test starts and kills. It reads one command for each line of its input, and answers with one line each:
//!
//! `id`, `init NAME ID RANKS RANK MS`, `sum BUFFER NAME VALUE`, `wait BUFFER MS`, `done BUFFER`, `get BUFFER`, `revoke NAME..`, `drop NAME`,
//! `idle MS`, `overdue MS`.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use varuna_cuda::{
    Action, Communicator, Context, DeviceBuffer, Element, Libraries, Membership, Operation, Pending, Pinned,
    Reaper, Stream, UniqueId, init, issue, revoke,
};

type Failure = Box<dyn std::error::Error>;
/// Numbers in a buffer: so many that a sum does not fit into a socket's buffer.
const NUMBERS: usize = 1 << 18;

/// A buffer and the operation that uses it.
struct Sum {
    memory: Arc<DeviceBuffer>,
    pending: Pending<Arc<DeviceBuffer>>,
}

struct Rank {
    context: Arc<Context>,
    reaper: Arc<Reaper>,
    stream: Stream,
    communicators: BTreeMap<String, Communicator>,
    sums: BTreeMap<String, Sum>,
}

fn main() -> Result<(), Failure> {
    let library = std::env::args()
        .nth(1)
        .ok_or("the path of the library is missing")?;
    let libraries = Libraries::load_from(Path::new(&library))?;
    let context = Context::open(&libraries, 0)?;
    let mut rank = Rank {
        reaper: Reaper::start()?,
        stream: Stream::new(&context)?,
        context,
        communicators: BTreeMap::new(),
        sums: BTreeMap::new(),
    };
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let answer = rank.answer(&words).unwrap_or_else(|why| format!("error: {why}"));
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn within(ms: &str) -> Result<Instant, Failure> {
    Ok(Instant::now() + Duration::from_millis(ms.parse()?))
}

impl Rank {
    fn answer(&mut self, words: &[&str]) -> Result<String, Failure> {
        let ok = || Ok("ok".to_owned());
        match words {
            ["id"] => {
                let id = UniqueId::draw(self.context.libraries())?;
                Ok(id.as_bytes().iter().map(|b| format!("{b:02x}")).collect())
            }
            ["init", name, id, ranks, rank, ms] => {
                let byte = |i: usize| u8::from_str_radix(id.get(2 * i..2 * i + 2).unwrap_or(""), 16);
                let bytes: Vec<u8> = (0..UniqueId::BYTES).map(byte).collect::<Result<_, _>>()?;
                let membership = Membership {
                    id: UniqueId::of_bytes(bytes.try_into().map_err(|_| "an id of another length")?),
                    ranks: ranks.parse()?,
                    rank: rank.parse()?,
                    blocks_max: None,
                };
                let stop = AtomicBool::new(false);
                let made = init(&self.context, &self.reaper, &[membership], &stop, within(ms)?)?;
                self.communicators
                    .extend(made.into_iter().map(|c| ((*name).to_owned(), c)));
                ok()
            }
            ["sum", buffer, name, value] => {
                let sum = self.sum(name, value.parse()?)?;
                self.sums.insert((*buffer).to_owned(), sum);
                ok()
            }
            ["wait", buffer, ms] => {
                self.of(buffer)?.pending.wait(within(ms)?)?;
                ok()
            }
            ["done", buffer] => Ok(self.of(buffer)?.pending.is_done()?.to_string()),
            ["get", buffer] => self.get(buffer),
            ["revoke", names @ ..] => {
                let named = names.iter().filter_map(|n| self.communicators.get(*n).cloned());
                revoke(&named.collect::<Vec<_>>())?;
                ok()
            }
            ["drop", name] => {
                self.sums.clear();
                self.communicators.remove(*name).ok_or("no such communicator")?;
                ok()
            }
            ["idle", ms] => Ok(self.reaper.wait_until_idle(within(ms)?).to_string()),
            ["overdue", ms] => {
                let limit = Duration::from_millis(ms.parse()?);
                let idle = self.reaper.wait_until_idle(Instant::now() + 2 * limit);
                // A worker ends its process in this case, because other ends of this process cannot be relied on.
                if !idle && self.reaper.is_overdue(limit) {
                    std::process::exit(3);
                }
                ok()
            }
            other => Err(format!("{other:?} is no command").into()),
        }
    }

    fn of(&self, buffer: &str) -> Result<&Sum, Failure> {
        Ok(self.sums.get(buffer).ok_or("no such buffer")?)
    }

    /// Begins the sum of a buffer whose numbers are all `value`.
    fn sum(&self, name: &str, value: f32) -> Result<Sum, Failure> {
        let communicator = self.communicators.get(name).ok_or("no such communicator")?;
        let mut pinned = Pinned::new(&self.context, 4 * NUMBERS)?;
        for number in pinned.as_mut_slice().as_chunks_mut::<4>().0 {
            *number = value.to_ne_bytes();
        }
        let memory = Arc::new(DeviceBuffer::new(&self.context, 4 * NUMBERS)?);
        let copy = pinned.copy_to(Arc::clone(&memory), &self.stream)?;
        let operation = Operation {
            communicator,
            action: Action::AllReduceSum,
            memory: Arc::clone(&memory),
            element: Element::Float32,
            stream: &self.stream,
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        let pending = issue(vec![operation], deadline)
            .map_err(|refused| refused.error)?
            .remove(0);
        drop(copy.finish(deadline)?);
        Ok(Sum { memory, pending })
    }

    /// The value of a buffer, whose numbers must all be equal.
    fn get(&self, buffer: &str) -> Result<String, Failure> {
        let memory = Arc::clone(&self.of(buffer)?.memory);
        // The read uses a stream of its own, because the stream of the sums may be blocked.
        let stream = Stream::new(&self.context)?;
        let copy = Pinned::new(&self.context, 4 * NUMBERS)?.copy_from(memory, &stream)?;
        let (pinned, _) = copy.finish(Instant::now() + Duration::from_secs(60))?;
        let (numbers, _) = pinned.as_slice().as_chunks::<4>();
        let first = f32::from_ne_bytes(numbers[0]);
        let same = numbers.iter().all(|n| f32::from_ne_bytes(*n) == first);
        Ok(if same {
            first.to_string()
        } else {
            "mixed".to_owned()
        })
    }
}
