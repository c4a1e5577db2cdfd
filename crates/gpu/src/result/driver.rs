//! The driver's calls with their errors: device, context, stream, event, memory, module. `graph` has graphs.
//!
//! cudarc panics without the driver, or a function of it. Every call here goes through `call!`: it asks for
//! both first, and takes the result as a number. The caller keeps handles alive and the context current here.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;

use super::call::{call, forwards, out};
use super::library::{good, named};
use super::{Error, Result, code};
use crate::sys::driver as sys;

pub use sys::{
    CUcontext, CUdevice, CUdevice_attribute as DeviceAttribute, CUdeviceptr, CUevent, CUfunction, CUmodule,
    CUstream,
};

forwards! {
    /// Gives the share back. Waits for the device when it was the last.
    primary_release(device: CUdevice) = cuDevicePrimaryCtxRelease_v2(device);
    /// Destroys one, and all that was made in it. Waits for what runs there.
    context_destroy(context: CUcontext) = cuCtxDestroy_v2(context);
    /// Makes a context current in this thread.
    set_current(context: CUcontext) = cuCtxSetCurrent(context);
    /// Destroys a stream; what runs in it goes on.
    stream_destroy(stream: CUstream) = cuStreamDestroy_v2(stream);
    event_destroy(event: CUevent) = cuEventDestroy_v2(event);
    /// Waits until an event has been reached, however long that takes.
    event_synchronize(event: CUevent) = cuEventSynchronize(event);
    /// Puts an event behind all that a context does now, in any stream. CUDA 12.5 on.
    event_record_behind_all(event: CUevent, context: CUcontext) = cuCtxRecordEvent(context, event);
    /// Waits for all work of the current context, however long; other threads' calls go on meanwhile.
    synchronize() = cuCtxSynchronize();
    event_record(event: CUevent, stream: CUstream) = cuEventRecord(event, stream);
    /// Has what is put into a stream from now on wait for an event.
    stream_wait_event(stream: CUstream, event: CUevent) = cuStreamWaitEvent(stream, event, 0);
    /// Frees it. Waits for the device.
    mem_free(address: CUdeviceptr) = cuMemFree_v2(address);
    /// Frees it. Waits for the device.
    host_free(start: *mut c_void) = cuMemFreeHost(start);
    fill(to: CUdeviceptr, byte: u8, bytes: usize, stream: CUstream) = cuMemsetD8Async(to, byte, bytes, stream);
    module_unload(module: CUmodule) = cuModuleUnload(module);
    /// Puts a kernel's code on the device now: the first launch of a lazily loaded one waits for the device.
    function_load(function: CUfunction) = cuFuncLoad(function);
}

/// How many GPUs this process may use.
pub fn device_count() -> Result<u32> {
    let mut count = 0;
    call!(cuDeviceGetCount(&mut count))?;
    Ok(count.max(0) as u32)
}

/// The device of an ordinal.
pub fn device(ordinal: u32) -> Result<CUdevice> {
    out(0, |device| {
        call!(cuDeviceGet(device, ordinal as c_int)).map_err(|error| error.of(format_args!("GPU {ordinal}")))
    })
}

pub fn device_name(device: CUdevice) -> Result<String> {
    let mut name = [0 as c_char; 256];
    call!(cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
    Ok(text_of(&name))
}

/// `0000:17:00.0`.
pub fn device_bus_id(device: CUdevice) -> Result<String> {
    let mut id = [0 as c_char; 32];
    call!(cuDeviceGetPCIBusId(id.as_mut_ptr(), id.len() as c_int, device))?;
    Ok(text_of(&id))
}

fn text_of(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub fn device_attribute(device: CUdevice, attribute: DeviceAttribute) -> Result<i32> {
    out(0, |value| {
        call!(cuDeviceGetAttribute(value, attribute, device))
            .map_err(|error| error.of(format_args!("{attribute:?}")))
    })
}

/// Bytes of memory of a device.
pub fn device_bytes(device: CUdevice) -> Result<usize> {
    out(0, |bytes| call!(cuDeviceTotalMem_v2(bytes, device)))
}

/// Takes a share in the device's primary context.
pub fn primary_retain(device: CUdevice) -> Result<CUcontext> {
    out(null_mut(), |context| call!(cuDevicePrimaryCtxRetain(context, device)))
}

/// How synchronising calls wait: spinning or sleeping (`CU_CTX_SCHED_*`). For contexts made after it, and the
/// primary one in either case.
pub fn primary_set_waiting(device: CUdevice, sleeping: bool) -> Result<()> {
    let flags = match sleeping {
        true => sys::CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC,
        false => sys::CUctx_flags::CU_CTX_SCHED_SPIN,
    };
    call!(cuDevicePrimaryCtxSetFlags_v2(device, flags as c_uint))
}

/// Whether there is a primary context of this process. By its name: an older driver's table lacks it.
pub fn primary_is_active(device: CUdevice) -> Result<bool> {
    let (mut flags, mut is_active) = (0, 0);
    call!(cuDevicePrimaryCtxGetState(device, &mut flags, &mut is_active))?;
    Ok(is_active != 0)
}

/// Makes a context beside the primary one, current in this thread then. By a name of every driver version.
pub unsafe fn context_create(device: CUdevice) -> Result<CUcontext> {
    const NAME: &str = "cuCtxCreate_v2";
    type Create = unsafe extern "C" fn(*mut CUcontext, c_uint, CUdevice) -> u32;
    let create = named::<Create>(NAME)?;
    let mut context = null_mut();
    // SAFETY: the driver's, of the type in `cuda.h`; it sets the handle.
    good(NAME, unsafe { create(&mut context, 0, device) })?;
    Ok(context)
}

/// Least and greatest priority; lower numbers are greater.
pub unsafe fn priority_range() -> Result<(i32, i32)> {
    let (mut least, mut greatest) = (0, 0);
    call!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
    Ok((least, greatest))
}

/// A stream that does not wait for the default one.
pub unsafe fn stream_create(priority: i32) -> Result<CUstream> {
    let (mut stream, non_blocking) = (null_mut(), sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint);
    call!(cuStreamCreateWithPriority(&mut stream, non_blocking, priority))?;
    Ok(stream)
}

/// Whether all that was put into a stream has ended. Error: what went wrong in it.
pub unsafe fn stream_query(stream: CUstream) -> Result<bool> {
    ended(call!(cuStreamQuery(stream)))
}

fn ended(result: Result<()>) -> Result<bool> {
    match result {
        Err(error) if error.code() == Some(code::NOT_READY) => Ok(false),
        other => other.map(|()| true),
    }
}

/// What an event does beside being reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It records time.
    Timed,
    /// It is only asked whether it has been reached.
    Untimed,
    /// A thread sleeps for it, in place of polling.
    Blocking,
}

pub unsafe fn event_create(kind: EventKind) -> Result<CUevent> {
    use sys::CUevent_flags as Flags;
    let flags = match kind {
        EventKind::Timed => Flags::CU_EVENT_DEFAULT as c_uint,
        EventKind::Untimed => Flags::CU_EVENT_DISABLE_TIMING as c_uint,
        EventKind::Blocking => {
            Flags::CU_EVENT_DISABLE_TIMING as c_uint | Flags::CU_EVENT_BLOCKING_SYNC as c_uint
        }
    };
    out(null_mut(), |event| call!(cuEventCreate(event, flags)))
}

/// Keeps this thread's calls from spoiling other threads' graph captures. By default most calls do, even a
/// query of a stream's state.
pub unsafe fn spare_captures() -> Result<()> {
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    call!(cuThreadExchangeStreamCaptureMode(&mut mode))
}

/// Whether an event has been reached.
pub unsafe fn event_query(event: CUevent) -> Result<bool> {
    ended(call!(cuEventQuery(event)))
}

/// Milliseconds between two events that have been reached.
pub unsafe fn event_elapsed_ms(start: CUevent, end: CUevent) -> Result<f32> {
    out(0.0, |elapsed| call!(cuEventElapsedTime_v2(elapsed, start, end)))
}

/// What a device may do with memory that is mapped at an address: `CUmemAccess_flags`.
pub fn mapped_access(device: CUdevice, address: CUdeviceptr) -> Result<u64> {
    let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let (location, mut rights) = (sys::CUmemLocation { type_, id: device }, 0);
    call!(cuMemGetAccess(&mut rights, &location, address))?;
    Ok(rights)
}

/// Device memory; aligned to 256 bytes at least.
pub unsafe fn mem_alloc(bytes: usize) -> Result<CUdeviceptr> {
    out(0, |address| {
        call!(cuMemAlloc_v2(address, bytes)).map_err(|error| error.of(format_args!("{bytes} bytes")))
    })
}

/// Host memory that stays where it is, seen by every context.
pub unsafe fn host_alloc(bytes: usize) -> Result<*mut c_void> {
    let (mut start, flags) = (null_mut(), sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP);
    call!(cuMemHostAlloc(&mut start, bytes, flags))
        .map_err(|error| error.of(format_args!("{bytes} bytes")))?;
    Ok(start)
}

/// Where the device sees host memory that was allocated or registered.
pub unsafe fn host_device_address(start: *mut c_void) -> Result<CUdeviceptr> {
    out(0, |address| {
        call!(cuMemHostGetDevicePointer_v2(address, start, 0))
            .map_err(|error| error.of(format_args!("{start:p}")))
    })
}

/// Lets the device see whole pages of host memory. `io`: they are a device's registers, not memory.
pub unsafe fn host_register(start: *mut c_void, bytes: usize, io: bool) -> Result<()> {
    let plain = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
    let flags = if io { plain | sys::CU_MEMHOSTREGISTER_IOMEMORY } else { plain };
    call!(cuMemHostRegister_v2(start, bytes, flags)).map_err(|error| {
        error.of(format_args!("{bytes} bytes at {start:p}{}", if io { " as device registers" } else { "" }))
    })
}

pub unsafe fn host_unregister(start: *mut c_void) -> Result<()> {
    call!(cuMemHostUnregister(start)).map_err(|error| error.of(format_args!("{start:p}")))
}

/// Copies between any two places that the device sees, in a stream.
pub unsafe fn copy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) -> Result<()> {
    call!(cuMemcpyAsync(to, from, bytes, stream)).map_err(|error| error.of(format_args!("{bytes} bytes")))
}

/// Copies to host memory, in a stream. The driver refuses what is not device memory; `copy` takes host's too.
pub unsafe fn copy_to_host(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) -> Result<()> {
    call!(cuMemcpyDtoHAsync_v2(to, from, bytes, stream))
        .map_err(|error| error.of(format_args!("{bytes} bytes from {from:#x}")))
}

pub unsafe fn copy_from_host(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> Result<()> {
    call!(cuMemcpyHtoDAsync_v2(to, from, bytes, stream))
        .map_err(|error| error.of(format_args!("{bytes} bytes to {to:#x}")))
}

/// Copies two rows of `width` bytes that lie `pitch` bytes apart on either side, from the host's memory.
pub unsafe fn copy_rows_from_host(
    to: CUdeviceptr,
    from: *const c_void,
    width: usize,
    pitch: usize,
    stream: CUstream,
) -> Result<()> {
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: from,
        srcDevice: 0,
        srcArray: null_mut(),
        srcPitch: pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: to,
        dstArray: null_mut(),
        dstPitch: pitch,
        WidthInBytes: width,
        Height: 2,
    };
    call!(cuMemcpy2DAsync_v2(&copy, stream))
        .map_err(|error| error.of(format_args!("rows of {width} bytes to {to:#x}")))
}

/// Between two places in device memory.
pub unsafe fn copy_on_device(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Result<()> {
    call!(cuMemcpyDtoDAsync_v2(to, from, bytes, stream))
        .map_err(|error| error.of(format_args!("{bytes} bytes from {from:#x} to {to:#x}")))
}

/// A dma-buf of whole pages of device memory.
pub unsafe fn dma_buf(start: CUdeviceptr, bytes: usize) -> Result<OwnedFd> {
    let mut fd: RawFd = -1;
    let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    call!(cuMemGetHandleForAddressRange((&raw mut fd).cast(), start, bytes, kind, 0))
        .map_err(|error| error.of(format_args!("{bytes} bytes at {start:#x}")))?;
    if fd < 0 {
        return Err(Error::Refused(format!("the driver gave {fd} as the file descriptor of a dma-buf")));
    }
    // SAFETY: the driver opened it for us just now, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes synchronous copies of this memory end before the call returns, as other devices that access it need.
pub unsafe fn set_sync_memops(start: CUdeviceptr) -> Result<()> {
    let on: c_uint = 1;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    call!(cuPointerSetAttribute((&raw const on).cast(), attribute, start))
}

/// Loads an image, all of it.
pub unsafe fn module_load(image: &[u8]) -> Result<CUmodule> {
    out(null_mut(), |module| call!(cuModuleLoadData(module, image.as_ptr().cast())))
}

pub unsafe fn function(module: CUmodule, name: &CStr) -> Result<CUfunction> {
    out(null_mut(), |function| {
        call!(cuModuleGetFunction(function, module, name.as_ptr()))
            .map_err(|error| error.of(format_args!("kernel `{}`", name.to_string_lossy())))
    })
}

/// Blocks of a kernel that fit a multiprocessor side by side.
pub unsafe fn blocks_a_multiprocessor(function: CUfunction, threads: c_int) -> Result<i32> {
    out(0, |blocks| call!(cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, 0)))
}

/// Size in bytes of a kernel's parameter; `None` behind the last.
pub unsafe fn parameter_bytes(function: CUfunction, index: usize) -> Result<Option<usize>> {
    let (mut offset, mut bytes) = (0, 0);
    match call!(cuFuncGetParamInfo(function, index, &mut offset, &mut bytes)) {
        Err(error) if error.code() == Some(code::INVALID_VALUE) => Ok(None),
        other => other.map(|()| Some(bytes)),
    }
}

/// Grid, block (both x, y, z), and bytes of dynamic shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    pub shared_bytes: u32,
}

impl Shape {
    /// So many blocks of so many threads, without shared memory of the launch's.
    pub const fn line(blocks: u32, threads: u32) -> Shape {
        Shape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }
}

/// Launches a kernel in a stream; the driver copies the parameters before it returns. `cooperative`: blocks
/// wait for one another, and the driver refuses more than run side by side.
pub unsafe fn launch(
    function: CUfunction,
    shape: Shape,
    stream: CUstream,
    parameters: &mut [*mut c_void],
    cooperative: bool,
) -> Result<()> {
    let ([x, y, z], [bx, by, bz], shared) = (shape.grid, shape.block, shape.shared_bytes);
    let parameters = parameters.as_mut_ptr();
    match cooperative {
        true => call!(cuLaunchCooperativeKernel(function, x, y, z, bx, by, bz, shared, stream, parameters)),
        false => call!(cuLaunchKernel(function, x, y, z, bx, by, bz, shared, stream, parameters, null_mut())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::library::ready;

    /// Where there is a driver these say nothing; where there is none they are what the guard is for.
    #[test]
    fn without_a_driver_each_call_is_the_same_error_in_the_loaders_words() {
        let Err(error) = ready() else { return };
        if let Error::NoDriver { .. } = &error {
            let text = error.to_string();
            for words in ["libcuda.so.1", "No such file"] {
                assert!(text.contains(words), "{words:?} is missing in {text:?}");
            }
            assert_eq!(text.lines().count(), 1);
        }
        assert_eq!(device_count().unwrap_err(), error);
        // SAFETY: without a driver no call is made, so that no handle is used.
        assert_eq!(unsafe { mem_alloc(16) }.unwrap_err(), error);
    }
}
