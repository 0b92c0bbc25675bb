//! The file that names the shards of a model's weights.

use plimsoll_units::Bytes;
use std::collections::BTreeMap;

/// The longest index that is read. The largest models have about 10 MiB.
pub(crate) const INDEX_BYTES_MAX: Bytes = Bytes::mib(16);

/// The shard of each tensor.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Index {
    pub(crate) weight_map: BTreeMap<String, String>,
}
