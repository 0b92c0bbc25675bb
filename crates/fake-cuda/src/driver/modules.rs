//! Modules of PTX, their functions, and launches.

use super::card::Card;
use super::codes::{
    Code, INVALID_HANDLE, INVALID_PTX, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES, NO_BINARY_FOR_GPU, NOT_FOUND,
    NOT_SUPPORTED, UNSUPPORTED_PTX_VERSION,
};
use super::copies::enqueue;
use super::state::{Driver, Function};
use super::{entries, give};
use crate::ptx::parse;
use crate::streams::Operation;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

/// `CUfunction_attribute`
const MAX_THREADS: c_uint = 0;
const SHARED_BYTES: c_uint = 1;
const CONST_BYTES: c_uint = 2;
const LOCAL_BYTES: c_uint = 3;
const REGISTERS: c_uint = 4;
const PTX_VERSION: c_uint = 5;
const MAX_DYNAMIC_SHARED: c_uint = 8;
const SHARED_CARVEOUT: c_uint = 9;

entries! {
    /// `cuModuleLoadData`, for NUL-terminated PTX text.
    fn cuModuleLoadData(driver, module: *mut u64, image: *const c_char) Context {
        let handle = load(driver, image)?;
        give(module, handle)
    }

    /// `cuModuleLoadDataEx`. Ignores options.
    fn cuModuleLoadDataEx(
        driver,
        module: *mut u64,
        image: *const c_char,
        _count: c_uint,
        _options: *mut c_uint,
        _values: *mut *mut c_void,
    ) Context {
        let handle = load(driver, image)?;
        give(module, handle)
    }

    /// `cuModuleUnload`. Waits for all operations first.
    fn cuModuleUnload(driver, module: u64) Context {
        driver.modules.remove(&module).ok_or(INVALID_HANDLE)?;
        driver.wait(|engine, machine| engine.synchronize_all(machine))?;
        driver.machinery.functions.retain(|_, function| function.owner != module);
        driver.used -= driver.card.module;
        Ok(())
    }

    /// `cuModuleGetFunction`.
    fn cuModuleGetFunction(driver, function: *mut u64, module: u64, name: *const c_char) Context {
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        let name = CStr::from_ptr(name).to_string_lossy();
        let loaded = driver.modules.get(&module).ok_or(INVALID_HANDLE)?.clone();
        let index = loaded.kernels.iter().position(|kernel| kernel.name == name).ok_or(NOT_FOUND)?;
        let handle = driver.handle();
        let most_dynamic = Card::USUAL_SHARED - loaded.kernels[index].shared_bytes as i32;
        let entry = Function { module: loaded, owner: module, index, most_dynamic };
        driver.machinery.functions.insert(handle, entry);
        give(function, handle)
    }

    /// `cuFuncGetAttribute`. Registers are not supported: they depend on the driver's compiler.
    fn cuFuncGetAttribute(driver, value: *mut c_int, attribute: c_uint, function: u64) Context {
        let function = driver.machinery.functions.get(&function).ok_or(INVALID_HANDLE)?;
        let kernel = function.kernel();
        give(value, match attribute {
            MAX_THREADS => kernel.max_threads.unwrap_or(1024).min(1024) as c_int,
            SHARED_BYTES => kernel.shared_bytes as c_int,
            CONST_BYTES => kernel.constants.len() as c_int,
            LOCAL_BYTES => kernel.local_bytes as c_int,
            PTX_VERSION => function.module.version as c_int,
            MAX_DYNAMIC_SHARED => function.most_dynamic,
            REGISTERS => return Err(NOT_SUPPORTED),
            _ => return Err(INVALID_VALUE),
        })
    }

    /// `cuFuncSetAttribute`. Shared memory above the default limit must be requested with it.
    fn cuFuncSetAttribute(driver, function: u64, attribute: c_uint, value: c_int) Context {
        let limit = driver.card.settings.shared_limit as c_int;
        let function = driver.machinery.functions.get_mut(&function).ok_or(INVALID_HANDLE)?;
        match attribute {
            MAX_DYNAMIC_SHARED => {
                let fits = value >= 0 && value + function.kernel().shared_bytes as c_int <= limit;
                function.most_dynamic = if fits { value } else { return Err(INVALID_VALUE) };
                Ok(())
            }
            SHARED_CARVEOUT if (-1..=100).contains(&value) => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    /// `cuFuncSetCacheConfig`.
    fn cuFuncSetCacheConfig(driver, function: u64, _config: c_uint) Context {
        driver.machinery.functions.get(&function).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    /// `cuOccupancyMaxActiveBlocksPerMultiprocessor`. Considers threads and shared memory, not registers.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        driver,
        blocks: *mut c_int,
        function: u64,
        threads: c_int,
        dynamic: usize,
    ) Context {
        let attribute = |number| driver.card.attribute(number).ok_or(INVALID_VALUE);
        let function = driver.machinery.functions.get(&function).ok_or(INVALID_HANDLE)?;
        let shared = function.kernel().shared_bytes as usize + dynamic + 1024;
        if !(1..=1024).contains(&threads) {
            return Err(INVALID_VALUE);
        }
        let by_threads = attribute(39)? / (threads as u32).next_multiple_of(32) as c_int;
        give(blocks, by_threads.min(attribute(106)?).min((attribute(81)? as usize / shared) as c_int))
    }

    /// `cuLaunchKernel`.
    fn cuLaunchKernel(
        driver,
        function: u64,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: u64,
        parameters: *const *const u8,
        extra: *const *const c_void,
    ) Context {
        let entry = driver.machinery.functions.get(&function).ok_or(INVALID_HANDLE)?;
        let kernel = entry.kernel();
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let threads = block.into_iter().map(u64::from).product::<u64>();
        let most = u64::from(kernel.max_threads.unwrap_or(1024).min(1024));
        let missing = parameters.is_null() && !kernel.parameters.is_empty();
        let flat = grid.contains(&0) || block.contains(&0);
        if missing || !extra.is_null() || flat || shared as i64 > i64::from(entry.most_dynamic) {
            return Err(INVALID_VALUE);
        }
        if threads > most {
            return Err(LAUNCH_OUT_OF_RESOURCES);
        }
        let mut bytes = vec![0; kernel.parameter_bytes as usize];
        for (index, parameter) in kernel.parameters.iter().enumerate() {
            let from = parameters.add(index).read();
            let to = &mut bytes[parameter.offset as usize..][..parameter.bytes as usize];
            to.copy_from_slice(std::slice::from_raw_parts(from, parameter.bytes as usize));
        }
        enqueue(driver, stream, Operation::Launch { function, grid, block, dynamic_shared: shared, parameters: bytes })
    }
}

/// Parses a module and stores it. Errors: invalid PTX, or PTX that the driver, the card or this interpreter does not
/// support.
///
/// # Safety
/// `image` is null or a NUL-terminated string.
unsafe fn load(driver: &mut Driver, image: *const c_char) -> Result<u64, Code> {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the caller promises that it is NUL-terminated.
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
    let module = parse(&text).map_err(|error| {
        eprintln!("fake CUDA: {error}");
        driver.last_failure = error.to_string();
        INVALID_PTX
    })?;
    if module.version > driver.card.newest_ptx() {
        return Err(UNSUPPORTED_PTX_VERSION);
    }
    if module.target > driver.card.target() {
        return Err(NO_BINARY_FOR_GPU);
    }
    driver.take(driver.card.module)?;
    let handle = driver.handle();
    driver.modules.insert(handle, Arc::new(module));
    Ok(handle)
}
