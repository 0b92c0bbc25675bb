//! The screen from outside: what it shows, what keys do, and that no size and no reading breaks it.

mod keys;
mod screens;
mod support;
#[cfg(unix)]
mod terminal;
