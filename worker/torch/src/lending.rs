//! Who has a buffer's elements beside tensors: so many readers, or one that may write.

use parking_lot::{Condvar, Mutex};
use std::time::Instant;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lent {
    /// There are this many readers.
    Shared(u32),
    /// There is one writer, which has the memory alone.
    Leased,
}

const NOBODY: Lent = Lent::Shared(0);

/// Counts them, and tells when the last reader ends.
pub(crate) struct Lending {
    lent: Mutex<Lent>,
    free: Condvar,
}

impl Lending {
    pub(crate) fn new() -> Lending {
        Lending {
            lent: Mutex::new(NOBODY),
            free: Condvar::new(),
        }
    }

    pub(crate) fn is_leased(&self) -> bool {
        *self.lent.lock() == Lent::Leased
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(*self.lent.lock(), Lent::Shared(1..))
    }

    /// False: somebody has the elements.
    pub(crate) fn lease(&self) -> bool {
        let mut lent = self.lent.lock();
        let is_free = *lent == NOBODY;
        if is_free {
            *lent = Lent::Leased;
        }
        is_free
    }

    pub(crate) fn end_lease(&self) {
        *self.lent.lock() = NOBODY;
    }

    /// False: they are leased, or have more readers than can be counted.
    pub(crate) fn share(&self) -> bool {
        let mut lent = self.lent.lock();
        let more = match *lent {
            Lent::Shared(readers) => readers.checked_add(1),
            Lent::Leased => None,
        };
        if let Some(readers) = more {
            *lent = Lent::Shared(readers);
        }
        more.is_some()
    }

    pub(crate) fn end_share(&self) {
        let mut lent = self.lent.lock();
        if let Lent::Shared(readers) = &mut *lent {
            *readers -= 1;
            if *readers == 0 {
                self.free.notify_all();
            }
        }
    }

    /// Waits until nobody reads any more. False: somebody does, at `deadline`.
    pub(crate) fn wait_for_shares(&self, deadline: Instant) -> bool {
        let mut lent = self.lent.lock();
        let shared = |lent: &mut Lent| matches!(lent, Lent::Shared(1..));
        !self
            .free
            .wait_while_until(&mut lent, shared, deadline)
            .timed_out()
    }
}
