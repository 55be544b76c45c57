//! Streams and events: the order of what a device does.

use crate::POLL;
use crate::context::Context;
use crate::driver::{CudaError, NOT_READY};
use cudarc::driver::sys::{CUevent, CUstream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `CU_STREAM_NON_BLOCKING`: no hidden order between this stream and the default one.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`: such events cost less.
const WITHOUT_TIMING: u32 = 2;
/// `CU_EVENT_DEFAULT`: the device notes when it came to it.
const WITH_TIMING: u32 = 0;

/// A queue of work for the device: done in order, beside that of other streams.
pub struct Stream {
    context: Arc<Context>,
    raw: CUstream,
}

/// A point in a stream's work.
pub struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

#[expect(unsafe_code, reason = "the driver's handles belong to no thread")]
// SAFETY: the driver locks a stream within each call.
unsafe impl Send for Stream {}
#[expect(unsafe_code, reason = "the driver's handles belong to no thread")]
// SAFETY: as above.
unsafe impl Sync for Stream {}
#[expect(unsafe_code, reason = "the driver's handles belong to no thread")]
// SAFETY: the driver locks an event within each call.
unsafe impl Send for Event {}
#[expect(unsafe_code, reason = "the driver's handles belong to no thread")]
// SAFETY: as above.
unsafe impl Sync for Event {}

#[expect(
    unsafe_code,
    reason = "calls of the driver's functions with handles that live"
)]
impl Stream {
    /// A new stream of the device.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(context: &Arc<Context>) -> Result<Stream, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        let driver = context.driver();
        // SAFETY: a place for a stream, and a flag of the header.
        let created = unsafe { (driver.stream_create)(&raw mut raw, NON_BLOCKING) };
        driver.checked("cuStreamCreate", created)?;
        Ok(Stream {
            context: Arc::clone(context),
            raw,
        })
    }

    /// The device's own stream, in which everything runs that names no other.
    #[must_use]
    pub fn default_of(context: &Arc<Context>) -> Stream {
        Stream {
            context: Arc::clone(context),
            raw: std::ptr::null_mut(),
        }
    }

    /// What comes next in this stream waits for the event as it was last recorded.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both handles live as long as their owners; the flags must be 0.
        let waits = unsafe { (self.context.driver().stream_wait)(self.raw, event.raw, 0) };
        self.context.driver().checked("cuStreamWaitEvent", waits)
    }

    /// An event behind all that is in this stream so far.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn record(&self) -> Result<Event, CudaError> {
        self.record_with(WITHOUT_TIMING)
    }

    /// The same, and the device notes when it comes to it, for [`Event::since`].
    ///
    /// # Errors
    /// The driver refuses.
    pub fn record_timed(&self) -> Result<Event, CudaError> {
        self.record_with(WITH_TIMING)
    }

    fn record_with(&self, flags: u32) -> Result<Event, CudaError> {
        let event = Event::new(&self.context, flags)?;
        // SAFETY: both handles live.
        let recorded = unsafe { (self.context.driver().event_record)(event.raw, self.raw) };
        self.context.driver().checked("cuEventRecord", recorded)?;
        Ok(event)
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Context of the stream's device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        // The last owner may be on a thread that has not used the device.
        let bound = self.context.bind();
        #[expect(unsafe_code, reason = "gives back what `new` made")]
        // SAFETY: made by `new` and destroyed once. Work that is still in it is done; the driver frees the stream after that.
        let _ = bound.map(|()| unsafe { (self.context.driver().stream_destroy)(self.raw) });
    }
}

#[expect(
    unsafe_code,
    reason = "calls of the driver's functions with handles that live"
)]
impl Event {
    fn new(context: &Arc<Context>, flags: u32) -> Result<Event, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place for an event, and a flag of the header.
        let created = unsafe { (context.driver().event_create)(&raw mut raw, flags) };
        context.driver().checked("cuEventCreate", created)?;
        Ok(Event {
            context: Arc::clone(context),
            raw,
        })
    }

    /// Whether the device has come to it.
    ///
    /// # Errors
    /// The driver reports an error of earlier work.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        self.context.bind()?;
        // SAFETY: the handle lives.
        match unsafe { (self.context.driver().event_query)(self.raw) } {
            NOT_READY => Ok(false),
            code => self.context.driver().checked("cuEventQuery", code).map(|()| true),
        }
    }

    /// How long the device took from the other event to this one. Both were recorded with time, and the device has come to both.
    ///
    /// # Errors
    /// One was recorded without time or is still ahead.
    pub fn since(&self, earlier: &Event) -> Result<Duration, CudaError> {
        self.context.bind()?;
        let mut ms = 0.0f32;
        // SAFETY: a place for a number; both handles live.
        let told = unsafe { (self.context.driver().event_elapsed)(&raw mut ms, earlier.raw, self.raw) };
        self.context.driver().checked("cuEventElapsedTime", told)?;
        Ok(Duration::from_secs_f32(ms.max(0.0) / 1e3))
    }

    /// Waits until the device has come to it.
    ///
    /// # Errors
    /// The deadline passed, or the driver reports an error of earlier work.
    pub fn wait(&self, what: &'static str, deadline: Instant) -> Result<(), CudaError> {
        while !self.is_done()? {
            if Instant::now() >= deadline {
                return Err(CudaError::Deadline { what });
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "gives back what `new` made")]
        // SAFETY: made by `new` and destroyed once; the driver frees it when no stream needs it any more.
        let _ = unsafe { (self.context.driver().event_destroy)(self.raw) };
    }
}
