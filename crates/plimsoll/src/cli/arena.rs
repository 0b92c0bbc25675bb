//! `plimsoll arena`: packs a lifetime problem of the public benchmark's format.
