//! Progress on stderr: a bar on a terminal, plain lines elsewhere. Not here: the streams (`streams/`), and what is
//! written once (`plimsoll_render`).

mod data;
mod download;
mod live;

pub(crate) use data::DataProgress;
pub(crate) use download::DownloadProgress;
pub(crate) use live::{Live, LiveRun};
