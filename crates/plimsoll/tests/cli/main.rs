//! Tests of the binary through its command line.

#[path = "../support/mod.rs"]
mod support;

mod adapters;
mod bad_input;
mod bitsandbytes;
mod blas;
mod cards;
mod chats;
mod circles;
mod cublas;
mod cuda_faults;
mod cuda_interrupt;
mod cuda_run;
mod cuda_visible;
mod devices;
mod docs;
mod docs_reference;
mod docs_shown;
mod download;
mod encoders;
mod estimate;
mod export;
mod families;
mod foreign;
mod generate;
mod gpus;
mod heat;
mod interrupt;
mod limits;
mod live;
mod model_folders;
mod notify;
mod numbers;
mod orders;
mod outputs;
#[cfg(unix)]
mod packaging;
mod pairs;
mod power;
mod preferences;
#[cfg(unix)]
mod pressure;
mod properties;
mod public_settings;
mod received;
mod replay;
mod rooms;
mod run_page;
mod self_test;
mod sent;
mod serve;
#[cfg(unix)]
mod service;
mod stress;
mod supervise;
mod threads;
#[cfg(unix)]
mod top;
mod track;
mod unread;
mod welcome;
mod words;
