//! The server as clients see it, over loopback: access control, responses and buttons.

mod actions;
mod clients;
mod doors;
mod events;
mod metrics;
mod pages;
mod requests;
mod support;
