//! Opens a file of the data as a stream of its decompressed bytes.

use crate::{Compression, Source};
use flate2::read::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BUFFER_BYTES: usize = 256 * 1024;
/// The largest window that a frame of a .zst may ask for; it is held in memory. `zstd -20` uses this size. RFC 8878,
/// section 3.1.1.1.2, requires 8 MiB at least; the format allows terabytes.
const WINDOW_BYTES_MAX: u64 = 32 << 20;

/// The decompressed bytes of a source. Adds the bytes read from disk to `raw_bytes`. Errors: read errors; `Utf16`.
pub(crate) fn open(source: &Source, raw_bytes: Arc<AtomicU64>) -> io::Result<Box<dyn Read>> {
    let limit = source.limit.map_or(u64::MAX, |limit| limit.0);
    let file = Counted { inner: plimsoll_files::open_regular(&source.path)?.take(limit), bytes: raw_bytes };
    let file = BufReader::with_capacity(BUFFER_BYTES, file);
    let mut reader = BufReader::new(decompressed(file, source.compression));
    // Readers look for a byte order mark in the first bytes, so nothing is consumed here.
    let failed = match reader.fill_buf() {
        Ok(start) => {
            plimsoll_files::refuse_utf16(start)?;
            None
        }
        // A decompression error is kept for the caller's first read.
        Err(error) => Some(error),
    };
    Ok(Box::new(Failed(failed).chain(reader)))
}

/// A reader that returns a stored error, once.
struct Failed(Option<io::Error>);

impl Read for Failed {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// The decompressed bytes of a stream.
pub(crate) fn decompressed<'r>(compressed: impl BufRead + 'r, compression: Compression) -> Box<dyn Read + 'r> {
    match compression {
        Compression::None => Box::new(compressed),
        Compression::Gzip => Box::new(MultiGzDecoder::new(compressed)),
        Compression::Zstd => Box::new(ZstdFrames::new(compressed)),
    }
}

struct Counted<R> {
    inner: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// All frames of a .zst file, one after another. ruzstd's own stream ends after the first frame, does not skip
/// skippable frames, and does not verify checksums.
struct ZstdFrames<R> {
    input: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> ZstdFrames<R> {
    fn new(input: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_BYTES_MAX);
        Self { input, decoder, in_frame: false }
    }

    /// Begins the next frame; false at the end of the file.
    fn begin_frame(&mut self) -> io::Result<bool> {
        while !self.input.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.input) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut (&mut self.input).take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }

    fn end_frame(&mut self) -> io::Result<()> {
        let stored = self.decoder.get_checksum_from_data();
        if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame does not match its checksum"));
        }
        self.in_frame = false;
        Ok(())
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame {
                self.in_frame = self.begin_frame()?;
                if !self.in_frame {
                    return Ok(0);
                }
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one_block = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.input, one_block).map_err(io::Error::other)?;
            }
            let count = self.decoder.read(buffer)?;
            if self.decoder.is_finished() && self.decoder.can_collect() == 0 {
                self.end_frame()?;
            }
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Format;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;

    pub(crate) fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    pub(crate) fn zstd(text: &[u8]) -> Vec<u8> {
        compress_to_vec(text, CompressionLevel::Fastest)
    }

    fn read_all(bytes: &[u8], compression: Compression) -> io::Result<Vec<u8>> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let source = Source::new(file.path().to_owned(), Format::Text, compression);
        let raw_bytes = Arc::default();
        let mut text = Vec::new();
        open(&source, Arc::clone(&raw_bytes))?.read_to_end(&mut text)?;
        assert_eq!(raw_bytes.load(Ordering::Relaxed), bytes.len() as u64);
        Ok(text)
    }

    #[test]
    fn members_and_frames_are_joined() {
        let text = include_bytes!("decompress.rs").repeat(40);
        let (a, b) = text.split_at(1000);
        assert_eq!(read_all(&text, Compression::None).unwrap(), text);
        assert_eq!(read_all(&[gzip(a), gzip(b)].concat(), Compression::Gzip).unwrap(), text);
        let skippable = [&0x184D_2A53u32.to_le_bytes()[..], &5u32.to_le_bytes()[..], b"notes"].concat();
        let frames = [skippable.clone(), zstd(a), skippable, zstd(b""), zstd(b)].concat();
        assert_eq!(read_all(&frames, Compression::Zstd).unwrap(), text);
        assert_eq!(read_all(b"", Compression::Zstd).unwrap(), b"");
    }

    #[test]
    fn truncated_files_are_refused() {
        let text = include_bytes!("decompress.rs");
        let (gz, zst) = (gzip(text), zstd(text));
        assert!(read_all(&gz[..gz.len() - 1], Compression::Gzip).is_err());
        assert!(read_all(&zst[..zst.len() - 1], Compression::Zstd).is_err());
        assert!(read_all(&zst[..3], Compression::Zstd).is_err());
        assert!(read_all(text, Compression::Gzip).is_err());
        assert!(read_all(text, Compression::Zstd).is_err());
    }

    /// A frame of 14 bytes: magic, a header without content size, a window of 2^31 bytes, a last raw block of one byte.
    #[test]
    fn a_window_of_gigabytes_is_refused_before_it_is_made() {
        let frame = |window: u8| [&[0x28, 0xb5, 0x2f, 0xfd, 0x00, window][..], &[0x09, 0, 0, b'x']].concat();
        assert_eq!(read_all(&frame(13 << 3), Compression::Zstd).unwrap(), b"x");
        let error = read_all(&frame(21 << 3), Compression::Zstd).unwrap_err();
        assert!(error.to_string().contains("window"), "{error}");
        assert!(
            read_all(&frame(15 << 3), Compression::Zstd).is_ok()
                && read_all(&frame(16 << 3), Compression::Zstd).is_err()
        );
    }

    #[test]
    fn a_limit_cuts_the_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"0123456789").unwrap();
        let limit = Some(plimsoll_units::Bytes(4));
        let whole = Source::new(file.path().to_owned(), Format::Text, Compression::None);
        let source = Source { limit, ..whole };
        let mut text = String::new();
        open(&source, Arc::default()).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "0123");
    }

    proptest! {
        #[test]
        fn damaged_files_never_panic_and_never_pass_as_other_text(at in any::<prop::sample::Index>(), xor in 1u8..) {
            let text = include_bytes!("damage.rs");
            for (mut packed, compression) in [(gzip(text), Compression::Gzip), (zstd(text), Compression::Zstd)] {
                let at = at.index(packed.len());
                packed[at] ^= xor;
                let read = ZstdOrGzip(&packed, compression).read();
                prop_assert!(read.is_err() || read.unwrap() == text || at < 8, "{compression:?} byte {at}");
            }
        }
    }

    /// Reads from memory, which is faster than a file per case.
    struct ZstdOrGzip<'a>(&'a [u8], Compression);

    impl ZstdOrGzip<'_> {
        fn read(&self) -> io::Result<Vec<u8>> {
            let mut text = Vec::new();
            match self.1 {
                Compression::Zstd => ZstdFrames::new(self.0).read_to_end(&mut text)?,
                _ => MultiGzDecoder::new(self.0).read_to_end(&mut text)?,
            };
            Ok(text)
        }
    }
}
