//! The loss curve as a small PNG for mails: steps to the right, losses up. The caption next to it gives its end points.

use crate::message::LossPoint;

const WIDTH: usize = 480;
const HEIGHT: usize = 160;
const MARGIN: usize = 6;

/// White, light gray for the grid, blue for the curve.
const PALETTE: [u8; 9] = [255, 255, 255, 225, 225, 225, 41, 98, 255];
const GRID: u8 = 1;
const CURVE: u8 = 2;

/// A PNG; `None` for fewer than two points.
pub(crate) fn png(points: &[LossPoint]) -> Option<Vec<u8>> {
    let pixels = drawn(points)?;
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, WIDTH as u32, HEIGHT as u32);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(&PALETTE[..]);
    let mut writer = encoder.write_header().ok()?;
    writer.write_image_data(&pixels).ok()?;
    writer.finish().ok()?;
    Some(bytes)
}

/// The caption: `loss from 5.5 (step 1) to 2.3 (step 100), lowest 2.2`.
pub(crate) fn caption(points: &[LossPoint]) -> Option<String> {
    let (first, last) = (points.first()?, points.last()?);
    let lowest = points.iter().map(|point| point.loss).fold(f64::INFINITY, f64::min);
    let (from, to) =
        (format!("{:.4} (step {})", first.loss, first.step), format!("{:.4} (step {})", last.loss, last.step));
    Some(format!("loss from {from} to {to}, lowest {lowest:.4}"))
}

/// Pixels in rows, from the top.
fn drawn(points: &[LossPoint]) -> Option<Vec<u8>> {
    let points = points.iter().filter(|point| point.loss.is_finite()).collect::<Vec<_>>();
    let (first, last) = (points.first()?.step, points.last()?.step);
    if points.len() < 2 || last <= first {
        return None;
    }
    let (low, high) =
        points.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), p| (l.min(p.loss), h.max(p.loss)));
    let span = if high > low { high - low } else { 1.0 };
    let (columns, rows) = ((WIDTH - 1 - 2 * MARGIN) as f64, (HEIGHT - 1 - 2 * MARGIN) as f64);
    let place = |point: &LossPoint| {
        let x = (point.step.saturating_sub(first)) as f64 / (last - first) as f64;
        let y = ((high - point.loss) / span).clamp(0.0, 1.0);
        (MARGIN as f64 + x.min(1.0) * columns, MARGIN as f64 + y * rows)
    };
    let mut pixels = vec![0; WIDTH * HEIGHT];
    for quarter in 0..=4 {
        let y = MARGIN + (HEIGHT - 1 - 2 * MARGIN) * quarter / 4;
        pixels[y * WIDTH + MARGIN..(y + 1) * WIDTH - MARGIN].fill(GRID);
    }
    for pair in points.windows(2) {
        let ((x0, y0), (x1, y1)) = (place(pair[0]), place(pair[1]));
        let steps = (x1 - x0).abs().max((y1 - y0).abs()).ceil().max(1.0);
        for part in 0..=steps as usize {
            let part = part as f64 / steps;
            let (x, y) = ((x0 + (x1 - x0) * part).round() as usize, (y0 + (y1 - y0) * part).round() as usize);
            // Two pixels thick.
            pixels[y * WIDTH + x] = CURVE;
            pixels[(y + 1) * WIDTH + x] = CURVE;
        }
    }
    Some(pixels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn points(losses: &[f64]) -> Vec<LossPoint> {
        losses.iter().zip(1..).map(|(&loss, step)| LossPoint { step, loss }).collect()
    }

    fn is_curve(pixels: &[u8], x: usize, y: usize) -> bool {
        pixels[y * WIDTH + x] == CURVE
    }

    #[test]
    fn a_falling_loss_goes_from_the_upper_left_to_the_lower_right() {
        let pixels = drawn(&points(&[4.0, 3.0, 2.0])).unwrap();
        let (right, bottom) = (WIDTH - 1 - MARGIN, HEIGHT - 1 - MARGIN);
        assert!(is_curve(&pixels, MARGIN, MARGIN) && is_curve(&pixels, right, bottom));
        assert!(!is_curve(&pixels, MARGIN, bottom) && !is_curve(&pixels, right, MARGIN));
        let columns = (MARGIN..=right).all(|x| (0..HEIGHT).any(|y| is_curve(&pixels, x, y)));
        assert!(columns, "the curve has no gaps");
    }

    #[test]
    fn a_decoder_reads_the_picture_back() {
        let losses = points(&[4.0, 3.0, 2.0]);
        let bytes = png(&losses).unwrap();
        assert!(bytes.len() < 4096, "{} bytes", bytes.len());
        let mut decoder = png::Decoder::new(std::io::Cursor::new(bytes));
        decoder.set_transformations(png::Transformations::IDENTITY);
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((frame.width as usize, frame.height as usize), (WIDTH, HEIGHT));
        assert_eq!(Some(pixels), drawn(&losses));
        assert_eq!(caption(&losses).unwrap(), "loss from 4.0000 (step 1) to 2.0000 (step 3), lowest 2.0000");
    }

    #[test]
    fn without_two_points_there_is_no_picture() {
        assert!(png(&[]).is_none() && png(&points(&[1.0])).is_none() && png(&points(&[f64::NAN; 5])).is_none());
    }

    proptest! {
        #[test]
        fn any_losses_are_drawn_within_the_picture(
            losses in proptest::collection::vec((any::<u64>(), any::<f64>()), 0..40)
        ) {
            let points = losses.into_iter().map(|(step, loss)| LossPoint { step, loss }).collect::<Vec<_>>();
            let _ = (png(&points), caption(&points));
        }
    }
}
