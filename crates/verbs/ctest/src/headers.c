/*
 * What the headers say of the places that Rust writes by hand: each function fills a struct of the header, by
 * field and through its inline setters where there are some, with values that the tests know.
 */
#include <endian.h>
#include <stddef.h>
#include <string.h>
#include <infiniband/mlx5dv.h>

#define DISTANCE(member) (offsetof(struct verbs_context, context) - offsetof(struct verbs_context, member))

void headers_inline(size_t out[8])
{
	out[0] = DISTANCE(sz);
	out[1] = DISTANCE(create_qp_ex);
	out[2] = DISTANCE(alloc_td);
	out[3] = DISTANCE(dealloc_td);
	out[4] = DISTANCE(alloc_parent_domain);
	out[5] = IBV_ACCESS_OPTIONAL_RANGE;
	out[6] = IBV_QPF_GRH_REQUIRED;
	out[7] = IBV_LINK_LAYER_ETHERNET;
}

/* Members that we use of structs which later versions have made larger. */
void headers_grown(size_t out[6])
{
	out[0] = offsetof(struct mlx5dv_obj, qp.in);
	out[1] = offsetof(struct mlx5dv_obj, cq.in);
	out[2] = offsetof(struct mlx5dv_obj, ah.out);
	out[3] = offsetof(struct ibv_port_attr, state);
	out[4] = offsetof(struct ibv_port_attr, lid);
	out[5] = offsetof(struct ibv_port_attr, flags);
}

/* Opmod 0xa5, index 0x0102, WRITE_IMM, QP 0xa7b8c9, ds 3, signature 0x5a, stream 0x0304, immediate 42. */
void headers_control(struct mlx5_wqe_ctrl_seg *out)
{
	memset(out, 0, sizeof(*out));
	mlx5dv_set_ctrl_seg(out, 0x0102, MLX5_OPCODE_RDMA_WRITE_IMM, 0xa5, 0xa7b8c9,
			    MLX5_WQE_CTRL_CQ_UPDATE | MLX5_WQE_CTRL_SOLICITED | MLX5_WQE_CTRL_FENCE, 3, 0x5a, htobe32(42));
	out->dci_stream_channel_id = htobe16(0x0304);
}

void headers_remote(struct mlx5_wqe_raddr_seg *out)
{
	memset(out, 0, sizeof(*out));
	out->raddr = htobe64(0x0102030405060708ull);
	out->rkey = htobe32(0x090a0b0c);
}

void headers_atomic(struct mlx5_wqe_atomic_seg *out)
{
	out->swap_add = htobe64(0x0102030405060708ull);
	out->compare = htobe64(0x1112131415161718ull);
}

void headers_data(struct mlx5_wqe_data_seg *out)
{
	mlx5dv_set_data_seg(out, 0x1234, 0xdeadbeef, 0x0102030405060708ull);
}

void headers_inline_header(struct mlx5_wqe_inl_data_seg *out)
{
	out->byte_count = htobe32(5 | MLX5_INLINE_SEG);
}

void headers_vector(struct mlx5_wqe_av *out)
{
	memset(out, 0, sizeof(*out));
	out->key.qkey.qkey = htobe32(0x01020304);
	out->dqp_dct = htobe32(0xabcdef | MLX5_EXTENDED_UD_AV);
	out->stat_rate_sl = 0x13;
	out->fl_mlid = 5;
	out->rlid = htobe16(0x1234);
	memcpy(out->rmac, "\x02\x03\x04\x05\x06\x07", 6);
	out->tclass = 0x20;
	out->hop_limit = 64;
	out->grh_gid_fl = htobe32(1u << 30 | 0x9u << 20 | 0x12345);
	memcpy(out->rgid, "0123456789abcdef", 16);
}

void headers_cqe(struct mlx5_cqe64 *out)
{
	memset(out, 0, sizeof(*out));
	out->ml_path = 0x15;
	out->slid = htobe16(0x2122);
	out->flags_rqpn = htobe32(1u << 28 | 0x3u << 24 | 0x998877);
	out->srqn_uidx = htobe32(0x131415);
	out->imm_inval_pkey = htobe32(42);
	out->byte_cnt = htobe32(0x01020304);
	out->timestamp = htobe64(0x1112131415161718ull);
	out->sop_drop_qpn = htobe32((uint32_t)MLX5_OPCODE_RDMA_READ << 24 | 0x414243);
	out->wqe_counter = htobe16(0xfffe);
	out->op_own = MLX5_CQE_RESP_SEND_IMM << 4 | 1 << 1;
	mlx5dv_set_cqe_owner(out, 1);
}

void headers_error_cqe(struct mlx5_err_cqe *out)
{
	memset(out, 0, sizeof(*out));
	out->srqn = htobe32(0x131415);
	out->vendor_err_synd = 0x88;
	out->syndrome = MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
	out->s_wqe_opcode_qpn = htobe32((uint32_t)MLX5_OPCODE_RDMA_READ << 24 | 0x414243);
	out->wqe_counter = htobe16(3);
	out->op_own = MLX5_CQE_REQ_ERR << 4;
}

/* The codes that the header has, in the order of `mlx5-layout`'s lists; returns how many. */
size_t headers_send_opcodes(uint8_t *out)
{
	const uint8_t codes[] = {
		MLX5_OPCODE_NOP, MLX5_OPCODE_SEND_INVAL, MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE_IMM,
		MLX5_OPCODE_SEND, MLX5_OPCODE_SEND_IMM, MLX5_OPCODE_TSO, MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_ATOMIC_CS,
		MLX5_OPCODE_ATOMIC_FA, MLX5_OPCODE_ATOMIC_MASKED_CS, MLX5_OPCODE_ATOMIC_MASKED_FA, MLX5_OPCODE_FMR,
		MLX5_OPCODE_LOCAL_INVAL, MLX5_OPCODE_CONFIG_CMD, MLX5_OPCODE_SET_PSV, MLX5_OPCODE_UMR,
		MLX5_OPCODE_TAG_MATCHING, MLX5_OPCODE_FLOW_TBL_ACCESS, MLX5_OPCODE_MMO,
	};
	memcpy(out, codes, sizeof(codes));
	return sizeof(codes);
}

size_t headers_cqe_opcodes(uint8_t *out)
{
	const uint8_t codes[] = {
		MLX5_CQE_REQ, MLX5_CQE_RESP_WR_IMM, MLX5_CQE_RESP_SEND, MLX5_CQE_RESP_SEND_IMM, MLX5_CQE_RESP_SEND_INV,
		MLX5_CQE_RESIZE_CQ, MLX5_CQE_NO_PACKET, MLX5_CQE_SIG_ERR, MLX5_CQE_REQ_ERR, MLX5_CQE_RESP_ERR,
		MLX5_CQE_INVALID,
	};
	memcpy(out, codes, sizeof(codes));
	return sizeof(codes);
}

size_t headers_syndromes(uint8_t *out)
{
	const uint8_t codes[] = {
		MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR,
		MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, MLX5_CQE_SYNDROME_MW_BIND_ERR,
		MLX5_CQE_SYNDROME_BAD_RESP_ERR, MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR,
		MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR,
		MLX5_CQE_SYNDROME_REMOTE_OP_ERR, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR,
		MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR,
	};
	memcpy(out, codes, sizeof(codes));
	return sizeof(codes);
}

void headers_numbers(uint64_t out[10])
{
	out[0] = MLX5_SEND_WQE_BB;
	out[1] = MLX5_SEND_WQE_SHIFT;
	out[2] = MLX5_INVALID_LKEY;
	out[3] = MLX5_INLINE_SEG;
	out[4] = MLX5_CQ_DOORBELL;
	out[5] = MLX5_RCV_DBR;
	out[6] = MLX5_SND_DBR;
	out[7] = MLX5_INLINE_SCATTER_32;
	out[8] = MLX5_INLINE_SCATTER_64;
	out[9] = MLX5_CQ_DB_REQ_NOT_SOL;
}
