//! Streams, events, captures and graphs.

use super::codes::{
    CAPTURED_EVENT, Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY, STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_UNJOINED,
    STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_UNSUPPORTED,
};
use super::copies::enqueue;
use super::state::Driver;
use super::{entries, give};
use crate::streams::{CaptureError, LEGACY, Operation};
use std::ffi::{c_int, c_uint, c_void};

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`
const NO_TIMING: c_uint = 2;
/// Duration reported for each operation. Not a measurement.
const MILLISECONDS: f32 = 0.01;

entries! {
    /// `cuStreamCreate`.
    fn cuStreamCreate(driver, stream: *mut u64, flags: c_uint) Context {
        let handle = driver.handle();
        driver.engine.create_stream(handle, flags & NON_BLOCKING == 0);
        give(stream, handle)
    }

    /// `cuStreamCreateWithPriority`.
    fn cuStreamCreateWithPriority(driver, stream: *mut u64, flags: c_uint, _priority: c_int) Context {
        let handle = driver.handle();
        driver.engine.create_stream(handle, flags & NON_BLOCKING == 0);
        give(stream, handle)
    }

    /// `cuStreamDestroy`.
    fn cuStreamDestroy_v2(driver, stream: u64) Context {
        stream_of(driver, stream)?;
        if stream == LEGACY {
            return Err(INVALID_HANDLE);
        }
        driver.wait(|engine, machine| engine.destroy_stream(stream, machine)).map(|_| ())
    }

    /// `cuStreamSynchronize`.
    fn cuStreamSynchronize(driver, stream: u64) Context {
        not_captured(driver, stream)?;
        driver.wait(|engine, machine| engine.synchronize(stream, machine))
    }

    /// `cuStreamQuery`.
    fn cuStreamQuery(driver, stream: u64) Context {
        not_captured(driver, stream)?;
        let ready = driver.wait(|engine, machine| engine.poll(stream, machine))?;
        if ready { Ok(()) } else { Err(NOT_READY) }
    }

    /// `cuStreamWaitEvent`.
    fn cuStreamWaitEvent(driver, stream: u64, event: u64, _flags: c_uint) Context {
        stream_of(driver, stream)?;
        event_of(driver, event)?;
        let (captured, recorded) = (driver.engine.capture_of(stream), driver.engine.event_capture(event));
        // Within a capture only events of the same capture are known.
        if captured.is_some() && recorded != captured {
            return Err(STREAM_CAPTURE_ISOLATION);
        }
        driver.engine.wait(stream, event);
        Ok(())
    }

    /// `cuLaunchHostFunc`.
    fn cuLaunchHostFunc(driver, stream: u64, function: *const c_void, argument: *mut c_void) Context {
        if function.is_null() {
            return Err(INVALID_VALUE);
        }
        enqueue(driver, stream, Operation::Callback { function: function as usize, argument: argument as usize })
    }

    /// `cuEventCreate`.
    fn cuEventCreate(driver, event: *mut u64, flags: c_uint) Context {
        let handle = driver.handle();
        driver.engine.create_event(handle, flags & NO_TIMING == 0);
        give(event, handle)
    }

    /// `cuEventRecord`.
    fn cuEventRecord(driver, event: u64, stream: u64) Context {
        stream_of(driver, stream)?;
        event_of(driver, event)?;
        driver.with_engine(|engine, machine| engine.record(event, stream, machine));
        Ok(())
    }

    /// `cuEventSynchronize`.
    fn cuEventSynchronize(driver, event: u64) Context {
        finished(driver, event)?;
        driver.wait(|engine, machine| engine.synchronize_event(event, machine))
    }

    /// `cuEventQuery`.
    fn cuEventQuery(driver, event: u64) Context {
        finished(driver, event)?;
        let ready = driver.wait(|engine, machine| engine.poll_event(event, machine))?;
        if ready { Ok(()) } else { Err(NOT_READY) }
    }

    /// `cuEventElapsedTime`: proportional to the number of operations.
    fn cuEventElapsedTime(driver, milliseconds: *mut f32, first: u64, last: u64) Context {
        give(milliseconds, elapsed(driver, first, last)?)
    }

    /// `cuEventElapsedTime_v2`.
    fn cuEventElapsedTime_v2(driver, milliseconds: *mut f32, first: u64, last: u64) Context {
        give(milliseconds, elapsed(driver, first, last)?)
    }

    /// `cuEventDestroy`.
    fn cuEventDestroy_v2(driver, event: u64) Context {
        if driver.engine.destroy_event(event) { Ok(()) } else { Err(INVALID_HANDLE) }
    }

    /// `cuStreamBeginCapture`. Fails for the legacy stream.
    fn cuStreamBeginCapture_v2(driver, stream: u64, _mode: c_uint) Context {
        not_captured(driver, stream)?;
        if stream == LEGACY {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        let graph = driver.handle();
        driver.engine.begin_capture(stream, graph);
        Ok(())
    }

    /// `cuStreamEndCapture`.
    fn cuStreamEndCapture(driver, stream: u64, to: *mut u64) Context {
        stream_of(driver, stream)?;
        let graph = driver.engine.capture_of(stream).ok_or(STREAM_CAPTURE_UNMATCHED)?;
        let outcome = driver.engine.graphs.get(&graph).ok_or(INVALID_VALUE)?.end(stream);
        if outcome == Err(CaptureError::Unmatched) {
            return Err(STREAM_CAPTURE_UNMATCHED);
        }
        driver.engine.end_capture(graph);
        if outcome.is_err() {
            driver.engine.graphs.remove(&graph);
            give(to, 0)?;
            return Err(STREAM_CAPTURE_UNJOINED);
        }
        give(to, graph)
    }

    /// `cuStreamIsCapturing`.
    fn cuStreamIsCapturing(driver, stream: u64, status: *mut c_uint) Context {
        stream_of(driver, stream)?;
        give(status, c_uint::from(driver.engine.capture_of(stream).is_some()))
    }

    /// `cuGraphInstantiateWithFlags`.
    fn cuGraphInstantiateWithFlags(driver, to: *mut u64, graph: u64, _flags: u64) Context {
        let nodes = driver.engine.graphs.get(&graph).ok_or(INVALID_VALUE)?.nodes.clone();
        let handle = driver.handle();
        driver.executables.insert(handle, nodes);
        give(to, handle)
    }

    /// `cuGraphUpload`.
    fn cuGraphUpload(driver, graph: u64, stream: u64) Context {
        stream_of(driver, stream)?;
        if driver.executables.contains_key(&graph) { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// `cuGraphLaunch`.
    fn cuGraphLaunch(driver, graph: u64, stream: u64) Context {
        not_captured(driver, stream)?;
        let nodes = driver.executables.get(&graph).ok_or(INVALID_VALUE)?.clone();
        driver.with_engine(|engine, machine| engine.launch_graph(stream, &nodes, machine));
        Ok(())
    }

    /// `cuGraphGetNodes`. Returns only their number.
    fn cuGraphGetNodes(driver, graph: u64, nodes: *mut u64, count: *mut usize) Context {
        let there = driver.engine.graphs.get(&graph).ok_or(INVALID_VALUE)?.nodes.len();
        if !nodes.is_null() {
            return Err(super::codes::NOT_SUPPORTED);
        }
        give(count, there)
    }

    /// `cuGraphExecDestroy`.
    fn cuGraphExecDestroy(driver, graph: u64) Context {
        driver.executables.remove(&graph).map(|_| ()).ok_or(INVALID_VALUE)
    }

    /// `cuGraphDestroy`.
    fn cuGraphDestroy(driver, graph: u64) Context {
        driver.engine.graphs.remove(&graph).map(|_| ()).ok_or(INVALID_VALUE)
    }
}

fn stream_of(driver: &Driver, stream: u64) -> Result<(), Code> {
    if driver.engine.has_stream(stream) { Ok(()) } else { Err(INVALID_HANDLE) }
}

fn event_of(driver: &Driver, event: u64) -> Result<(), Code> {
    if driver.engine.has_event(event) { Ok(()) } else { Err(INVALID_HANDLE) }
}

/// Checks that the host may wait for the stream.
fn not_captured(driver: &Driver, stream: u64) -> Result<(), Code> {
    stream_of(driver, stream)?;
    if driver.engine.capture_of(stream).is_some() { Err(STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}

/// Checks that the host may wait for the event.
fn finished(driver: &Driver, event: u64) -> Result<(), Code> {
    event_of(driver, event)?;
    if driver.engine.event_capture(event).is_some() { Err(CAPTURED_EVENT) } else { Ok(()) }
}

fn elapsed(driver: &mut Driver, first: u64, last: u64) -> Result<f32, Code> {
    finished(driver, first)?;
    finished(driver, last)?;
    match driver.engine.operations_between(first, last) {
        Some(Some(operations)) => Ok(operations as f32 * MILLISECONDS),
        Some(None) => Err(NOT_READY),
        None => Err(INVALID_HANDLE),
    }
}
