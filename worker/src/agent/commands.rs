//! Commands to the engine: they keep their order, however full the engine's queue is.

use std::collections::VecDeque;
use std::sync::mpsc::{SyncSender, TrySendError};

/// The other end of the queue is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EngineGone;

/// The queue to the engine, and the commands for which it has no room. The agent must not wait for room, because that would hide a stuck
/// engine from the coordinator. The number of waiting commands is bounded: the member sends one unit at a time to each peer, or up to 256 in a
/// plan whose first step begins with parameters, takes over each of its units once, and runs one step.
pub(super) struct Commands<C> {
    engine: SyncSender<C>,
    waiting: VecDeque<C>,
}

impl<C> Commands<C> {
    pub(super) fn new(engine: SyncSender<C>) -> Commands<C> {
        Commands {
            engine,
            waiting: VecDeque::new(),
        }
    }

    /// Gives the engine a command, after those that wait.
    pub(super) fn push(&mut self, command: C) -> Result<(), EngineGone> {
        self.waiting.push_back(command);
        self.flush()
    }

    /// Gives the engine as many of those that wait as it has room for.
    pub(super) fn flush(&mut self) -> Result<(), EngineGone> {
        while let Some(command) = self.waiting.pop_front() {
            match self.engine.try_send(command) {
                Ok(()) => {}
                Err(TrySendError::Full(command)) => {
                    self.waiting.push_front(command);
                    return Ok(());
                }
                Err(TrySendError::Disconnected(_)) => return Err(EngineGone),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn commands_reach_a_full_engine_in_order() {
        for room in 1..4 {
            let (engine, queue) = sync_channel(room);
            let mut commands = Commands::new(engine);
            // None of these calls may block, because nobody reads the queue meanwhile.
            (0..10).for_each(|i| commands.push(i).unwrap());
            let mut carried_out: Vec<i32> = queue.try_iter().take(room).collect();
            // There is room in the queue, and a newer command must not overtake those that wait.
            commands.push(10).unwrap();
            while carried_out.len() < 11 {
                let before = carried_out.len();
                carried_out.extend(queue.try_iter().take(room));
                assert!(carried_out.len() > before, "{carried_out:?} and no more");
                commands.flush().unwrap();
            }
            assert_eq!(carried_out, (0..11).collect::<Vec<_>>(), "room for {room}");
            assert!(queue.try_recv().is_err(), "each is given once");
        }
    }

    #[test]
    fn an_engine_that_is_gone_is_told_from_one_that_is_full() {
        let (engine, queue) = sync_channel(1);
        let mut commands = Commands::new(engine);
        assert_eq!(commands.push(1), Ok(()));
        assert_eq!(commands.push(2), Ok(()));
        drop(queue);
        assert_eq!(commands.flush(), Err(EngineGone));
        assert_eq!(commands.push(3), Err(EngineGone));
    }
}
