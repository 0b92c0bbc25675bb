//! Lowers the priority of threads that monitor a run or report on it, so that they do not slow down its steps.

/// The nice value of such a thread: when competing for a core, it gets a tenth of another thread's share.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Lowers the priority of the calling thread, and of threads and programs that it starts. Ignores a refusal by the
/// system, since only the speed of other threads depends on it. Does nothing except on Linux: elsewhere priorities
/// belong to whole processes.
pub fn lower_thread_priority() {
    #[cfg(target_os = "linux")]
    {
        // Linux applies this to the calling thread. A thread that was started with a higher nice value keeps it.
        let own = rustix::process::getpriority_process(None).unwrap_or(0);
        if own < NICENESS {
            let _ = rustix::process::setpriority_process(None, NICENESS);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_lowers_its_own_priority_only() {
        let niceness = || rustix::process::getpriority_process(None).expect("the system reports it");
        let before = niceness();
        let of_thread = || {
            lower_thread_priority();
            [niceness(), std::thread::scope(|scope| scope.spawn(niceness).join().expect("it ends"))]
        };
        let theirs = std::thread::scope(|scope| scope.spawn(of_thread).join().expect("it ends"));
        assert_eq!(theirs, [before.max(NICENESS); 2]);
        assert_eq!(niceness(), before);
    }
}
