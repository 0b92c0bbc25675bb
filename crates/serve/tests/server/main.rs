//! The server as clients meet it, on loopback: who is let in, what they are told, and what buttons do.

mod actions;
mod clients;
mod doors;
mod events;
mod metrics;
mod pages;
mod requests;
mod support;
