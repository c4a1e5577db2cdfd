/* Memory of a GPU in `gpu_memory.c` that is mapped into a reserved range of addresses. */

static int (*reserve)(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
static int (*create)(uint64_t *, size_t, const void *, unsigned long long), (*map)(uint64_t, size_t, size_t, uint64_t, unsigned long long);
static int (*unmap)(uint64_t, size_t), (*set_access)(uint64_t, size_t, const void *, size_t);

static void find_mappings(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	*(void **)&reserve = symbol(library, "cuMemAddressReserve");
	*(void **)&create = symbol(library, "cuMemCreate");
	*(void **)&map = symbol(library, "cuMemMap");
	*(void **)&unmap = symbol(library, "cuMemUnmap");
	*(void **)&set_access = symbol(library, "cuMemSetAccess");
}

static void map_one(uint64_t at, int for_nic)
{
	/* CUmemAllocationProp: pinned, on GPU 0; CUmemAccessDesc: its kernels and copies read and write. */
	struct {
		int type, handles, location, gpu;
		void *attributes;
		unsigned char compression, for_nic, rest[6];
	} properties = { .type = 1, .location = 1, .for_nic = (unsigned char)for_nic };
	struct { int location, gpu, rights; } access = { 1, 0, 3 };
	uint64_t handle;
	CUDA(create(&handle, 2 << 20, &properties, 0));
	CUDA(map(at, 2 << 20, 0, handle, 0));
	CUDA(set_access(at, 2 << 20, &access, 1));
}

/* `other`: the other end of its READs. */
static void on_region(struct ibv_mr *mr, uint64_t addr, int other)
{
	struct place kept = places[0][GPU];
	places[0][GPU] = (struct place){ addr, mr };
	static const uint64_t sizes[] = { 8, 20000, 600000 };
	for (size_t s = 0; s < 3; s++) {
		one_message(IBV_WR_RDMA_WRITE, GPU, HOST, sizes[s], 0, 0);
		one_message(IBV_WR_RDMA_READ, GPU, other, sizes[s], 0, 0);
	}
	places[0][GPU] = kept;
}

static void fails_on(struct ibv_mr *mr, uint64_t addr, uint64_t length)
{
	struct place kept = places[0][GPU];
	places[0][GPU] = (struct place){ addr, mr };
	struct name where = peer((struct order){ .what = WHERE, .kind = HOST });
	post(IBV_WR_RDMA_WRITE, GPU, 0, length, where, 0);
	CHECK(completion(&it) == IBV_WC_LOC_PROT_ERR);
	places[0][GPU] = kept;
	reconnect();
}

static void mapped(int other)
{
	find_mappings();
	enum { MIB2 = 2 << 20 };
	uint64_t range;
	CUDA(reserve(&range, 5 * MIB2, 0, 0, 0));
	/* Nothing, two mappings for a NIC, one that is for none, nothing. */
	map_one(range + 1 * MIB2, 1);
	map_one(range + 2 * MIB2, 1);
	map_one(range + 3 * MIB2, 0);
	CHECK(refused(range, MIB2, EFAULT) && refused(range, 2 * MIB2, EFAULT));
	CHECK(refused(range + 3 * MIB2, MIB2, EFAULT) && refused(range + 2 * MIB2, 2 * MIB2, EFAULT));
	CHECK(refused(range + 4 * MIB2, MIB2, EFAULT) && refused(range + 2 * MIB2, 4 * MIB2, EFAULT));
	struct ibv_mr *first = ibv_reg_mr(it.pd, (void *)(range + MIB2), MIB2, ALL);
	struct ibv_mr *next = ibv_reg_mr(it.pd, (void *)(range + 2 * MIB2), MIB2, ALL);
	/* From the middle of one to that of the other. */
	struct ibv_mr *both = ibv_reg_mr(it.pd, (void *)(range + MIB2 + MIB2 / 2), MIB2, ALL);
	CHECK(first != NULL && next != NULL && both != NULL);
	on_region(first, range + MIB2, other);
	on_region(next, range + 2 * MIB2, other);
	on_region(both, range + MIB2 + MIB2 / 2, other);
	on_region(both, range + 2 * MIB2 - 4096, other);
	/* Where the first was is nothing, then something else: the second is what it was. */
	for (int anew = 0; anew < 2; anew++) {
		if (anew)
			map_one(range + MIB2, 1);
		else
			CUDA(unmap(range + MIB2, MIB2));
		fails_on(first, range + MIB2, 8);
		fails_on(first, range + MIB2, 200000);
		fails_on(both, range + 2 * MIB2 - 4096, 8192);
		on_region(next, range + 2 * MIB2, other);
	}
	/* What is registered there from now on is what is there now. */
	struct ibv_mr *again = ibv_reg_mr(it.pd, (void *)(range + MIB2), MIB2, ALL);
	CHECK(again != NULL);
	on_region(again, range + MIB2, other);
	CHECK(ibv_dereg_mr(first) == 0 && ibv_dereg_mr(next) == 0 && ibv_dereg_mr(both) == 0);
	on_region(again, range + MIB2, other);
	CHECK(ibv_dereg_mr(again) == 0);
	printf("mapped\n");
}
