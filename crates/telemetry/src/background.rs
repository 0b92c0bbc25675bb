//! Threads that let others go first: what watches a run, or tells of it, shall not take the cores from its steps.

/// By how much less the system is to favor such a thread: a tenth of what another one gets of a core that both want.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// From here on this thread lets others go first, and so do threads and programs that it starts. Nobody is told where the system
/// refuses it, since nothing but the speed of others depends on it; elsewhere than on Linux nothing is done, where priorities
/// are those of whole processes.
pub fn let_others_go_first() {
    #[cfg(target_os = "linux")]
    {
        // Of the calling thread, as Linux has it. Whoever was started with less stays there.
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
    fn a_thread_goes_behind_others_without_taking_its_process_along() {
        let niceness = || rustix::process::getpriority_process(None).expect("the system tells");
        let before = niceness();
        let of_thread = || {
            let_others_go_first();
            [niceness(), std::thread::scope(|scope| scope.spawn(niceness).join().expect("it ends"))]
        };
        let theirs = std::thread::scope(|scope| scope.spawn(of_thread).join().expect("it ends"));
        assert_eq!(theirs, [before.max(NICENESS); 2]);
        assert_eq!(niceness(), before);
    }
}
