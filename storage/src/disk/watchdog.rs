//! A plain thread that wakes every executor every few milliseconds, and notices those that do not answer.
//!
//! An executor of glommio 0.9.0 can go to sleep with runnable tasks in its queue: when its preempt timer fires before it
//! has run the first of them, it takes that for nothing to do. Only something from outside revives it; a timer of its
//! own can be stranded with the rest. So each executor parks one task here, whose waker this thread uses from outside.
//! The same wake-up, answered late, tells how long the executor ran nothing else.
//!
//! Waking up 200 times a second is most of what an idle shard costs. So executors that have had next to nothing to do for
//! a while are woken less often: to strand a task, an executor must first be kept from running for its preempt timer's
//! 100 ms, beside which the few milliseconds more until the next wake-up count little.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// While every executor is quiet, the rounds are so many times as far apart.
const QUIET_STRETCH: u32 = 4;
/// So many answers in a row, each after next to no work, make an executor quiet.
const QUIET_BEATS: u32 = 20;
/// Next to no work: this part of the time, which the wake-ups themselves may need.
const QUIET_PART: u32 = 10;

/// Called once for each stall that reaches the fatal length, with the executor's name and how long it has not run.
pub type OnFatal = Box<dyn Fn(&str, Duration) + Send>;

/// How a watchdog watches.
#[derive(Debug, Clone, Copy)]
pub struct WatchdogOptions {
    /// How often each executor is woken, while one of them works; one that has not answered by the next time is counted as
    /// stalled.
    pub every: Duration,
    /// After how long without an answer a stall is fatal.
    pub fatal_after: Duration,
}

impl Default for WatchdogOptions {
    fn default() -> Self {
        Self {
            every: Duration::from_millis(5),
            fatal_after: Duration::from_secs(5),
        }
    }
}

/// What was seen of one executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchReport {
    /// The executor's name.
    pub name: String,
    /// How often it left a wake-up unanswered until the next one was due.
    pub stalls: u64,
    /// The longest of these, in microseconds.
    pub stall_us_max: u64,
}

/// The watchdog of a process. Dropping it ends its thread; executors it watched go on unwatched.
#[derive(Debug)]
pub struct Watchdog {
    watched: Arc<Mutex<Vec<Arc<Watch>>>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What an executor and the watchdog share.
#[derive(Debug)]
struct Watch {
    name: String,
    slot: Mutex<Parked>,
    /// How often the parked task ran.
    beats: AtomicU64,
    /// The processor time that the executor's thread had used when it last did, in nanoseconds.
    ran_ns: AtomicU64,
    stalls: AtomicU64,
    stall_us_max: AtomicU64,
}

#[derive(Debug, Default)]
struct Parked {
    waker: Option<Waker>,
    done: bool,
}

impl Watch {
    fn parked(&self) -> MutexGuard<'_, Parked> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner) // no code that panics runs under it
    }
}

impl Watchdog {
    /// Starts the thread.
    pub fn start(options: WatchdogOptions, on_fatal: OnFatal) -> std::io::Result<Self> {
        let watched = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = channel();
        let seen = watched.clone();
        let thread = std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || {
                let mut rounds = Rounds {
                    options,
                    on_fatal,
                    pulses: Vec::new(),
                };
                let start = Instant::now();
                let mut pause = options.every;
                while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                    let all_quiet = rounds.go(&seen, start.elapsed());
                    pause = options.every * if all_quiet { QUIET_STRETCH } else { 1 };
                }
            })?;
        Ok(Self {
            watched,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Begins to watch an executor: the future must be spawned on it at once, and ends when the guard is dropped.
    pub fn watch(&self, name: &str) -> (WatchGuard, impl Future<Output = ()> + Send + use<>) {
        let watch = Arc::new(Watch {
            name: name.into(),
            slot: Mutex::default(),
            beats: AtomicU64::new(0),
            ran_ns: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            stall_us_max: AtomicU64::new(0),
        });
        self.list().push(watch.clone());
        (WatchGuard { watch: watch.clone() }, Pacemaker { watch })
    }

    /// What was seen of each executor that is still watched.
    pub fn reports(&self) -> Vec<WatchReport> {
        let report = |watch: &Arc<Watch>| WatchReport {
            name: watch.name.clone(),
            stalls: watch.stalls.load(Ordering::Relaxed),
            stall_us_max: watch.stall_us_max.load(Ordering::Relaxed),
        };
        self.list().iter().map(report).collect()
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Watch>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it failed only if `on_fatal` panicked, which was printed
        }
    }
}

/// Ends the watch of an executor when it is dropped.
#[derive(Debug)]
pub struct WatchGuard {
    watch: Arc<Watch>,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        let waker = {
            let mut parked = self.watch.parked();
            parked.done = true;
            parked.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The task parked on the executor: each time it is polled, the executor has run.
struct Pacemaker {
    watch: Arc<Watch>,
}

impl Future for Pacemaker {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.watch.ran_ns.store(thread_time_ns(), Ordering::Relaxed);
        self.watch.beats.fetch_add(1, Ordering::Release);
        let mut parked = self.watch.parked();
        if parked.done {
            return Poll::Ready(());
        }
        match &parked.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => parked.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

/// The processor time that this thread has used.
fn thread_time_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// The thread's own state.
struct Rounds {
    options: WatchdogOptions,
    on_fatal: OnFatal,
    pulses: Vec<(Arc<Watch>, Pulse)>,
}

impl Rounds {
    /// One round; says whether every executor is quiet.
    fn go(&mut self, watched: &Mutex<Vec<Arc<Watch>>>, now: Duration) -> bool {
        let mut list = watched.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|watch| !watch.parked().done);
        self.pulses
            .retain(|(watch, _)| list.iter().any(|listed| Arc::ptr_eq(watch, listed)));
        for watch in list.iter() {
            if !self.pulses.iter().any(|(known, _)| Arc::ptr_eq(watch, known)) {
                self.pulses.push((watch.clone(), Pulse::new(self.options, now)));
            }
        }
        drop(list); // `on_fatal` may ask for reports
        for (watch, pulse) in &mut self.pulses {
            let beats = watch.beats.load(Ordering::Acquire);
            let seen = pulse.step(
                beats,
                Duration::from_nanos(watch.ran_ns.load(Ordering::Relaxed)),
                now,
            );
            if seen.new_stall {
                watch.stalls.fetch_add(1, Ordering::Relaxed);
            }
            let waited_us = u64::try_from(seen.waited.as_micros()).unwrap_or(u64::MAX);
            watch.stall_us_max.fetch_max(waited_us, Ordering::Relaxed);
            if seen.fatal {
                (self.on_fatal)(&watch.name, seen.waited);
            }
            if seen.wake
                && let Some(waker) = &watch.parked().waker
            {
                waker.wake_by_ref();
            }
        }
        self.pulses.iter().all(|(_, pulse)| pulse.is_quiet())
    }
}

/// Decides from the beats of one executor whether it runs. Pure: the time comes in.
#[derive(Debug)]
struct Pulse {
    options: WatchdogOptions,
    beats: u64,
    last_step: Duration,
    /// How long the present wake-up has gone unanswered, in time that the watchdog itself was running.
    waited: Duration,
    told_fatal: bool,
    /// The processor time that its thread had used at the last answer.
    ran: Duration,
    /// Answers in a row after next to no work.
    quiet_beats: u32,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    wake: bool,
    new_stall: bool,
    fatal: bool,
    /// How long the executor has been stalled; zero while it is not.
    waited: Duration,
}

impl Pulse {
    fn new(options: WatchdogOptions, now: Duration) -> Self {
        Self {
            options,
            beats: 0,
            last_step: now,
            waited: Duration::ZERO,
            told_fatal: false,
            ran: Duration::ZERO,
            quiet_beats: 0,
        }
    }

    fn is_quiet(&self) -> bool {
        self.quiet_beats >= QUIET_BEATS
    }

    /// `ran` is the processor time that the executor's thread had used at its last beat.
    fn step(&mut self, beats: u64, ran: Duration, now: Duration) -> Seen {
        let passed = now.saturating_sub(self.last_step);
        let worked = ran.saturating_sub(std::mem::replace(&mut self.ran, ran));
        let is_quiet = beats != self.beats && worked * QUIET_PART <= passed;
        self.quiet_beats = if is_quiet {
            self.quiet_beats.saturating_add(1)
        } else {
            0
        };
        // A watchdog that was itself late (SIGSTOP, a suspended machine, no CPU) proves nothing about the others.
        let since = (now - self.last_step).min(2 * self.options.every);
        self.last_step = now;
        if beats != self.beats {
            (self.beats, self.waited, self.told_fatal) = (beats, Duration::ZERO, false);
            return Seen {
                wake: true,
                ..Seen::default()
            };
        }
        let new_stall = self.waited.is_zero() && self.beats != 0;
        self.waited += since;
        let fatal = self.waited >= self.options.fatal_after && !self.told_fatal;
        self.told_fatal |= fatal;
        // Each unanswered wake-up adds a reference to the task's 16-bit count: none after the verdict.
        Seen {
            wake: !self.told_fatal,
            new_stall,
            fatal,
            waited: self.waited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pulse() -> Pulse {
        let mut pulse = Pulse::new(WatchdogOptions::default(), Duration::ZERO);
        pulse.step(1, Duration::ZERO, 5 * MS);
        pulse
    }

    #[test]
    fn a_stall_is_counted_once_and_measured() {
        let mut pulse = pulse();
        assert_eq!(
            pulse.step(2, Duration::ZERO, 10 * MS),
            Seen {
                wake: true,
                ..Seen::default()
            }
        );
        let first = pulse.step(2, Duration::ZERO, 15 * MS);
        assert_eq!(
            first,
            Seen {
                wake: true,
                new_stall: true,
                fatal: false,
                waited: 5 * MS
            }
        );
        assert_eq!(
            pulse.step(2, Duration::ZERO, 20 * MS),
            Seen {
                new_stall: false,
                waited: 10 * MS,
                ..first
            }
        );
        assert_eq!(pulse.step(3, Duration::ZERO, 25 * MS).waited, Duration::ZERO);
        assert!(
            pulse.step(3, Duration::ZERO, 30 * MS).new_stall,
            "the next one counts again"
        );
    }

    #[test]
    fn five_seconds_are_fatal_once_and_end_the_waking() {
        let mut pulse = pulse();
        let seen: Vec<Seen> = (2..2000)
            .map(|n| pulse.step(1, Duration::ZERO, n * 5 * MS))
            .collect();
        assert_eq!(seen.iter().filter(|seen| seen.fatal).count(), 1);
        let at = seen.iter().position(|seen| seen.fatal).unwrap();
        assert_eq!(seen[at].waited, Duration::from_secs(5));
        assert!(seen[..at].iter().all(|seen| seen.wake) && seen[at..].iter().all(|seen| !seen.wake));
        assert!(at < i16::MAX as usize);
    }

    #[test]
    fn an_executor_is_quiet_after_a_while_of_next_to_no_work_and_not_a_beat_longer() {
        let mut pulse = pulse();
        let (mut now, mut ran, mut beats) = (5 * MS, Duration::ZERO, 1);
        let mut next = |pulse: &mut Pulse, worked: Duration, answers: bool| {
            now += 5 * MS;
            ran += worked;
            beats += u64::from(answers);
            pulse.step(beats, ran, now);
            pulse.is_quiet()
        };
        let wake_up = Duration::from_micros(100);
        let quiet: Vec<bool> = (0..30).map(|_| next(&mut pulse, wake_up, true)).collect();
        assert_eq!(
            quiet.iter().position(|&quiet| quiet),
            Some(QUIET_BEATS as usize - 2)
        );
        assert!(!next(&mut pulse, MS, true), "it works");
        let quiet = (0..QUIET_BEATS).filter(|_| next(&mut pulse, wake_up, true));
        assert_eq!(quiet.count(), 1);
        assert!(!next(&mut pulse, Duration::ZERO, false), "no answer is not quiet");
    }

    // A stopped process wakes up with the clock far ahead: that is not the executor's fault.
    #[test]
    fn a_watchdog_that_was_stopped_itself_accuses_nobody() {
        let mut pulse = pulse();
        let seen = pulse.step(1, Duration::ZERO, Duration::from_secs(3600));
        assert_eq!((seen.fatal, seen.waited), (false, 10 * MS));
    }

    #[test]
    fn the_watch_ends_with_its_guard() {
        let watchdog = Watchdog::start(WatchdogOptions::default(), Box::new(|_, _| {})).unwrap();
        let (guard, pacemaker) = watchdog.watch("shard-0");
        assert_eq!(watchdog.reports().len(), 1);
        let thread = std::thread::spawn(move || futures_lite::future::block_on(pacemaker));
        std::thread::sleep(20 * MS);
        assert!(!thread.is_finished());
        drop(guard);
        thread.join().unwrap();
        std::thread::sleep(20 * MS);
        assert!(watchdog.reports().is_empty());
    }
}
