//! The terminal: taken, and given back whatever happens.

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

/// Bytes of a picture that are written at once.
const WRITTEN_AT_ONCE: usize = 64 << 10;

static FAILED: AtomicBool = AtomicBool::new(false);

/// Held while a panic is told, so that the program does not end before it was.
static TELLING: Mutex<()> = Mutex::new(());

fn telling() -> MutexGuard<'static, ()> {
    TELLING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether any thread has panicked since the screen was taken.
pub(super) fn has_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

/// The whole screen, until this is dropped.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
}

fn take() -> io::Result<()> {
    // Whoever stopped this may have changed modes without its knowing, as shells do.
    disable_raw_mode()?;
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen)
}

/// Gives the terminal back. Nobody can be told where that fails.
fn give_back() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// What a panic says is read on the screen as it was before.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let say = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            let _told = telling();
            FAILED.store(true, Ordering::Relaxed);
            give_back();
            say(what);
        }));
    });
}

impl Screen {
    /// Takes the terminal. Errors: it is none.
    pub fn enter() -> io::Result<Self> {
        restore_on_panic();
        take().inspect_err(|_| give_back())?;
        let screen = BufWriter::with_capacity(WRITTEN_AT_ONCE, stdout());
        let mut screen = Self { terminal: Terminal::new(CrosstermBackend::new(screen)).inspect_err(|_| give_back())? };
        screen.draw_anew()?;
        Ok(screen)
    }

    /// Draws a picture; only what differs from the last is written.
    pub fn draw(&mut self, paint: impl FnOnce(Rect, &mut Buffer)) -> io::Result<()> {
        if has_failed() {
            return Ok(());
        }
        self.terminal.draw(|frame| paint(frame.area(), frame.buffer_mut()))?;
        Ok(())
    }

    /// Gives the terminal back, stops, and takes it again once somebody lets this go on.
    pub fn suspend(&mut self) -> io::Result<()> {
        give_back();
        #[cfg(unix)]
        signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGTSTP)?;
        self.take_again()
    }

    /// Takes the terminal again, and draws everything anew: others may have used it meanwhile.
    pub fn take_again(&mut self) -> io::Result<()> {
        take()?;
        self.draw_anew()
    }

    /// Forgets what is on the screen. Not by `clear`, which asks the terminal where its cursor is: the answer comes as keys do,
    /// and is taken by whoever reads those.
    fn draw_anew(&mut self) -> io::Result<()> {
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::new(0, 0, size.width, size.height))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
        // Another thread may be telling why it failed.
        drop(telling());
    }
}
