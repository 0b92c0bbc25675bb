//! Takes over the terminal, and restores it in every case.

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::Rect;
use std::io::{self, BufWriter, Stdout, stdout};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Buffer size for writing a frame.
const BUFFER_BYTES: usize = 64 << 10;

static FAILED: AtomicBool = AtomicBool::new(false);

/// Held while a panic message is printed, so that the program does not exit before.
static PANIC_OUTPUT: Mutex<()> = Mutex::new(());

fn lock_panic_output() -> MutexGuard<'static, ()> {
    PANIC_OUTPUT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether any thread has panicked since the screen was taken.
pub(super) fn has_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

/// The alternate screen; dropping it restores the terminal.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
}

fn take() -> io::Result<()> {
    // The shell may have changed modes while this process was suspended.
    disable_raw_mode()?;
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen)
}

/// Restores the terminal. Errors are ignored: there is no place to report them.
fn restore() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// Restores the terminal before a panic message is printed.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print_message = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let _guard = lock_panic_output();
            FAILED.store(true, Ordering::Relaxed);
            restore();
            print_message(info);
        }));
    });
}

impl Screen {
    /// Takes over the terminal. Errors: stdout is not a terminal.
    pub fn enter() -> io::Result<Self> {
        restore_on_panic();
        take().inspect_err(|_| restore())?;
        let screen = BufWriter::with_capacity(BUFFER_BYTES, stdout());
        let mut screen = Self { terminal: Terminal::new(CrosstermBackend::new(screen)).inspect_err(|_| restore())? };
        screen.force_redraw()?;
        Ok(screen)
    }

    /// Draws a frame; writes only the changed cells.
    pub fn draw(&mut self, paint: impl FnOnce(Rect, &mut Buffer)) -> io::Result<()> {
        if has_failed() {
            return Ok(());
        }
        self.terminal.draw(|frame| paint(frame.area(), frame.buffer_mut()))?;
        Ok(())
    }

    /// Restores the terminal, suspends the process, and takes the terminal over again after SIGCONT.
    pub fn suspend(&mut self) -> io::Result<()> {
        restore();
        #[cfg(unix)]
        signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGTSTP)?;
        self.retake()
    }

    /// Takes the terminal over again and redraws: other programs may have written to it.
    pub fn retake(&mut self) -> io::Result<()> {
        take()?;
        self.force_redraw()
    }

    /// Forces a full redraw. Does not use `clear`, which asks the terminal for its cursor's position: the answer comes
    /// as input, which the thread that reads keys would take.
    fn force_redraw(&mut self) -> io::Result<()> {
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::new(0, 0, size.width, size.height))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
        // Wait until another thread has printed its panic message.
        drop(lock_panic_output());
    }
}
