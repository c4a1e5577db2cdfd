//! Address handles. libmlx5 asks for them on Ethernet only, to learn the destination's MAC address.

use mlx5_device::command::{AddressVector, refuse_if};
use mlx5_device::{Answer, Commands};

use super::attributes::UHW_OUT;
use super::layout::{Writer, create_ah, create_ah_resp, mlx5_create_ah_resp, read_address, words};
use super::server::Call;
use super::write::CORE_OUT;
use crate::config::LinkLayer;

pub fn create<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    use create_ah as at;
    let (context, input) = (call.context()?, call.core_in);
    let device = call.device()?;
    let lacks_gid = device.link_layer == LinkLayer::Roce && input.u8(at::is_global) == 0;
    refuse_if!(lacks_gid, EINVAL, "CREATE_AH: on Ethernet LID {:#x} needs a GID", input.u16(at::dlid));
    let address = read_address!(create_ah, input);
    let made = call.nic()?.create_ah(context, input.u32(at::pd_handle), &address)?;
    let driver = Writer::<{ mlx5_create_ah_resp::SIZE }>::new()
        .u32(mlx5_create_ah_resp::response_length, mlx5_create_ah_resp::SIZE as u32)
        .bytes(mlx5_create_ah_resp::dmac, &made.dmac)
        .finish();
    let write = || {
        call.command.write(CORE_OUT, &words!(create_ah_resp, ah_handle = made.handle))?;
        call.command.write(UHW_OUT, &driver)
    };
    call.server.or_undo(write, |nic| nic.destroy_ah(context, made.handle))
}
