//! The file that names the shards of a model's weights.

use plimsoll_units::Bytes;
use std::collections::BTreeMap;

/// The longest index that is read; those of the largest models have some 10 MiB.
pub(crate) const INDEX_BYTES_MAX: Bytes = Bytes::mib(16);

/// Which shard each tensor is in.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Index {
    pub(crate) weight_map: BTreeMap<String, String>,
}
