//! Places for connections. Where all are taken, a new connection gets the place of another: of a client that has not shown
//! the token, of the address with the most of these, the oldest; if all have shown it, of the one whose last request is the
//! oldest, whose browser comes back by itself.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// A limited number of places.
pub(crate) struct Places {
    free: Arc<Semaphore>,
    count: u32,
    /// Grows with each connection and each request that was let in.
    clock: Arc<AtomicU64>,
    taken: Arc<Mutex<HashMap<u64, Taken>>>,
}

/// A place that a connection has.
struct Taken {
    peer: IpAddr,
    seat: Seat,
    leave: Arc<Notify>,
}

/// A connection's place as its requests see it.
#[derive(Clone)]
pub(crate) struct Seat {
    clock: Arc<AtomicU64>,
    /// When its last request was let in, 0 if none was.
    let_in: Arc<AtomicU64>,
}

impl Seat {
    /// A request is whole, and came with the token.
    pub(crate) fn let_in(&self) {
        self.let_in.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// A connection's place; free again when it is dropped.
pub(crate) struct Place {
    number: u64,
    seat: Seat,
    leave: Arc<Notify>,
    taken: Arc<Mutex<HashMap<u64, Taken>>>,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    pub(crate) fn seat(&self) -> Seat {
        self.seat.clone()
    }

    /// Waits until another connection gets this place.
    pub(crate) async fn taken_away(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        locked(&self.taken).remove(&self.number);
    }
}

impl Places {
    pub(crate) fn new(count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let free = Arc::new(Semaphore::new(count as usize));
        Self { free, count, clock: Arc::new(AtomicU64::new(1)), taken: Arc::default() }
    }

    /// A place for a connection from this address, at once.
    pub(crate) async fn take(&self, peer: IpAddr) -> Place {
        if self.free.available_permits() == 0 {
            self.free_one();
        }
        let permit = self.free.clone().acquire_owned().await.expect("nobody closes it");
        let number = self.clock.fetch_add(1, Ordering::Relaxed);
        let seat = Seat { clock: self.clock.clone(), let_in: Arc::default() };
        let leave = Arc::new(Notify::new());
        locked(&self.taken).insert(number, Taken { peer, seat: seat.clone(), leave: leave.clone() });
        Place { number, seat, leave, taken: self.taken.clone(), _permit: permit }
    }

    /// Has one connection leave.
    fn free_one(&self) {
        let mut taken = locked(&self.taken);
        let mut strangers = HashMap::<IpAddr, usize>::new();
        let let_in = |taken: &Taken| taken.seat.let_in.load(Ordering::Relaxed);
        taken
            .values()
            .filter(|taken| let_in(taken) == 0)
            .for_each(|taken| *strangers.entry(taken.peer).or_default() += 1);
        let rank = |(number, taken): &(&u64, &Taken)| match let_in(taken) {
            0 => (0, usize::MAX - strangers[&taken.peer], **number),
            last => (1, 0, last),
        };
        let last = taken.iter().min_by_key(rank).map(|(number, _)| *number);
        if let Some(leaving) = last.and_then(|number| taken.remove(&number)) {
            leaving.leave.notify_one();
        }
    }

    /// Waits until no place is taken.
    pub(crate) async fn all_free(&self) {
        let _ = self.free.acquire_many(self.count).await;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn take(places: &Places, last: u8) -> Place {
        places.take(IpAddr::from([10, 0, 0, last])).now_or_never().expect("a place is free")
    }

    fn must_leave(place: &Place) -> bool {
        place.taken_away().now_or_never().is_some()
    }

    #[test]
    fn the_oldest_stranger_of_the_address_with_the_most_leaves_first() {
        let places = Places::new(4);
        let mut held = [1, 2, 2, 3].map(|last| take(&places, last)).map(Some);
        held[0].as_ref().expect("held").seat().let_in();
        for expected in [1, 2, 3, 0] {
            // The new connection waits for the one that leaves.
            assert!(places.take(IpAddr::from([10, 0, 0, 9])).now_or_never().is_none());
            let leaving = held.iter().flatten().map(must_leave).collect::<Vec<_>>();
            let index = held
                .iter()
                .enumerate()
                .filter(|(_, place)| place.is_some())
                .nth(leaving.iter().position(|leaves| *leaves).expect("one leaves"));
            let index = index.expect("it is held").0;
            assert_eq!(index, expected, "{leaving:?}");
            held[index] = None;
            let newcomer = take(&places, 9);
            newcomer.seat().let_in();
            std::mem::forget(newcomer);
        }
    }
}
