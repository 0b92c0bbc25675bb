//! Connection slots. When all are taken, a new connection evicts another: the oldest unauthorized one of the address
//! that has the most of these, or, if all are authorized, the one with the oldest last request, whose browser
//! reconnects by itself.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// A limited number of connection slots.
pub(crate) struct Slots {
    free: Arc<Semaphore>,
    count: u32,
    /// Incremented by each connection and each authorized request.
    clock: Arc<AtomicU64>,
    taken: Arc<Mutex<HashMap<u64, Entry>>>,
}

/// Entry of a taken slot.
struct Entry {
    peer: IpAddr,
    handle: SlotHandle,
    evict: Arc<Notify>,
}

/// Lets requests of a connection mark it as authorized.
#[derive(Clone)]
pub(crate) struct SlotHandle {
    clock: Arc<AtomicU64>,
    /// Clock value of the last authorized request, or 0.
    authorized_at: Arc<AtomicU64>,
}

impl SlotHandle {
    /// Records a complete request with a valid token.
    pub(crate) fn authorize(&self) {
        self.authorized_at.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// A taken slot; dropping it frees the slot.
pub(crate) struct Slot {
    number: u64,
    handle: SlotHandle,
    evict: Arc<Notify>,
    taken: Arc<Mutex<HashMap<u64, Entry>>>,
    _permit: OwnedSemaphorePermit,
}

impl Slot {
    pub(crate) fn handle(&self) -> SlotHandle {
        self.handle.clone()
    }

    /// Waits until another connection evicts this one.
    pub(crate) async fn evicted(&self) {
        self.evict.notified().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        locked(&self.taken).remove(&self.number);
    }
}

impl Slots {
    pub(crate) fn new(count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let free = Arc::new(Semaphore::new(count as usize));
        Self { free, count, clock: Arc::new(AtomicU64::new(1)), taken: Arc::default() }
    }

    /// Takes a slot for a connection from this address; evicts another connection if all slots are taken.
    pub(crate) async fn take(&self, peer: IpAddr) -> Slot {
        if self.free.available_permits() == 0 {
            self.evict_one();
        }
        let permit = self.free.clone().acquire_owned().await.expect("the semaphore is never closed");
        let number = self.clock.fetch_add(1, Ordering::Relaxed);
        let handle = SlotHandle { clock: self.clock.clone(), authorized_at: Arc::default() };
        let evict = Arc::new(Notify::new());
        locked(&self.taken).insert(number, Entry { peer, handle: handle.clone(), evict: evict.clone() });
        Slot { number, handle, evict, taken: self.taken.clone(), _permit: permit }
    }

    /// Evicts one connection.
    fn evict_one(&self) {
        let mut taken = locked(&self.taken);
        let mut unauthorized = HashMap::<IpAddr, usize>::new();
        let authorized_at = |taken: &Entry| taken.handle.authorized_at.load(Ordering::Relaxed);
        taken
            .values()
            .filter(|taken| authorized_at(taken) == 0)
            .for_each(|taken| *unauthorized.entry(taken.peer).or_default() += 1);
        let rank = |(number, taken): &(&u64, &Entry)| match authorized_at(taken) {
            0 => (0, usize::MAX - unauthorized[&taken.peer], **number),
            last => (1, 0, last),
        };
        let last = taken.iter().min_by_key(rank).map(|(number, _)| *number);
        if let Some(evicted) = last.and_then(|number| taken.remove(&number)) {
            evicted.evict.notify_one();
        }
    }

    /// Waits until all slots are free.
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

    fn take(slots: &Slots, last: u8) -> Slot {
        slots.take(IpAddr::from([10, 0, 0, last])).now_or_never().expect("a slot is free")
    }

    fn is_evicted(slot: &Slot) -> bool {
        slot.evicted().now_or_never().is_some()
    }

    #[test]
    fn eviction_starts_with_unauthorized_connections_of_the_busiest_address() {
        let slots = Slots::new(4);
        let mut held = [1, 2, 2, 3].map(|last| take(&slots, last)).map(Some);
        held[0].as_ref().expect("held").handle().authorize();
        for expected in [1, 2, 3, 0] {
            // The new connection waits until the evicted one has ended.
            assert!(slots.take(IpAddr::from([10, 0, 0, 9])).now_or_never().is_none());
            let leaving = held.iter().flatten().map(is_evicted).collect::<Vec<_>>();
            let index = held
                .iter()
                .enumerate()
                .filter(|(_, slot)| slot.is_some())
                .nth(leaving.iter().position(|leaves| *leaves).expect("one leaves"));
            let index = index.expect("the slot is taken").0;
            assert_eq!(index, expected, "{leaving:?}");
            held[index] = None;
            let newcomer = take(&slots, 9);
            newcomer.handle().authorize();
            std::mem::forget(newcomer);
        }
    }
}
