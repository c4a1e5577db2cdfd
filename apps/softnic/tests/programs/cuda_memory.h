/* Memory of `cuda_stand_in.c`: allocations, ranges of addresses, and registered pages of the host. */

/* The first gap that is large enough: what was freed is given again, as by the real driver. With the lock. */
static uint64_t gap(uint64_t bytes)
{
	uint64_t at = device;
	for (int i = 0; i < 2 * MOST; i++) {
		uint64_t start = i < MOST ? allocations[i].start : reserved[i - MOST].start;
		uint64_t its = i < MOST ? allocations[i].bytes : reserved[i - MOST].bytes;
		if (its != 0 && at < start + its && start < at + bytes) {
			at = (start + its + 511) & ~511ull;
			i = -1;
		}
	}
	return at;
}
static CUresult take(uint64_t at, size_t bytes, int moves, int apart, int for_nic)
{
	int place = 0;
	while (place < MOST && allocations[place].bytes != 0)
		place++;
	if (at + bytes > device + MEMORY || place == MOST || bytes == 0)
		return OUT_OF_MEMORY;
	allocations[place].start = at;
	allocations[place].bytes = bytes;
	allocations[place].id = ++last_id;
	allocations[place].managed = moves;
	allocations[place].apart = apart;
	allocations[place].for_nic = for_nic;
	return 0;
}
static CUresult allocate(uint64_t *address, size_t bytes, int moves)
{
	ENTER;
	pthread_mutex_lock(&lock);
	uint64_t at = gap(bytes);
	CUresult result = take(at, bytes, moves, 0, !moves);
	if (result == 0)
		*address = at;
	pthread_mutex_unlock(&lock);
	return result;
}

/* Ranges of addresses and their mappings: `handle` is the size, and bit 0 says whether a NIC may reach it. */
CUresult cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t wanted, unsigned long long flags)
{
	(void)alignment, (void)wanted;
	ENTER;
	pthread_mutex_lock(&lock);
	int place = 0;
	while (place < MOST && reserved[place].bytes != 0)
		place++;
	/* On 2 MiB, as the real driver. */
	*address = ((gap(bytes + (2 << 20)) + (2 << 20) - 1) & ~((2ull << 20) - 1));
	if (place < MOST) {
		reserved[place].start = *address;
		reserved[place].bytes = bytes;
	}
	pthread_mutex_unlock(&lock);
	return place < MOST ? (CUresult)flags : OUT_OF_MEMORY;
}
CUresult cuMemCreate(uint64_t *handle, size_t bytes, const uint8_t *properties, unsigned long long flags)
{
	/* CUmemAllocationProp: type at 0, location's type at 8, gpuDirectRDMACapable at 25. */
	*handle = bytes | (properties[25] != 0);
	return bytes % (2 << 20) == 0 && properties[0] == 1 && properties[8] == 1 ? (CUresult)flags : INVALID_VALUE;
}
CUresult cuMemRelease(uint64_t handle) { return handle == 0; }
CUresult cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	int whole = offset == 0 && (handle & ~1ull) == bytes && reservation(address) >= 0 && reservation(address) == reservation(address + bytes - 1);
	CUresult result = whole && allocation(address, 1) < 0 ? take(address, bytes, 0, 1, handle & 1) : INVALID_VALUE;
	pthread_mutex_unlock(&lock);
	return result;
}
CUresult cuMemSetAccess(uint64_t address, size_t bytes, const void *access, size_t count)
{
	(void)access;
	return count == 1 && reach(address, bytes) != NULL ? 0 : INVALID_VALUE;
}
CUresult cuMemGetAccess(unsigned long long *rights, const int *location, uint64_t address)
{
	*rights = allocation(address, 1) >= 0 ? 3 : 0;
	return location[0] == 1 ? 0 : INVALID_VALUE;
}
CUresult cuMemUnmap(uint64_t address, size_t bytes)
{
	pthread_mutex_lock(&lock);
	int i = allocation(address, bytes);
	CUresult result = i >= 0 && allocations[i].bytes == bytes && allocations[i].apart ? 0 : INVALID_VALUE;
	if (result == 0)
		allocations[i].bytes = 0;
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemAlloc_v2(uint64_t *address, size_t bytes) { return allocate(address, bytes, 0); }
CUresult cuMemAllocManaged(uint64_t *address, size_t bytes, unsigned flags) { return flags == 1 ? allocate(address, bytes, 1) : INVALID_VALUE; }
CUresult cuMemFree_v2(uint64_t address)
{
	/* As the real one it waits for all kernels first, and only then does the memory go. */
	for (;;) {
		CUresult waited = wait_for_kernels();
		if (waited)
			return waited;
		/* A kernel that is launched from here on finds it gone. */
		pthread_mutex_lock(&lock);
		if (running == 0)
			break;
		pthread_mutex_unlock(&lock);
	}
	int place = allocation(address, 1);
	CUresult result = place < 0 || allocations[place].start != address ? INVALID_VALUE : 0;
	if (result == 0)
		allocations[place].bytes = 0;
	pthread_mutex_unlock(&lock);
	return result;
}
static CUresult note_pages(void *start, size_t bytes, int ours)
{
	uint64_t first = (uint64_t)start;
	CUresult result = OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	for (int i = MOST - 1; i >= 0; i--)
		if (registered[i].bytes != 0 && first < registered[i].start + registered[i].bytes && registered[i].start < first + bytes) {
			result = ALREADY_REGISTERED;
			break;
		} else if (registered[i].bytes == 0)
			result = 0;
	for (int i = 0; i < MOST && result == 0; i++)
		if (registered[i].bytes == 0) {
			registered[i].start = first;
			registered[i].bytes = bytes;
			registered[i].id = ++last_id;
			registered[i].ours = ours;
			break;
		}
	pthread_mutex_unlock(&lock);
	return result;
}
/* As the real one it waits for all kernels first, those of every thread, and copies wait for it. */
static CUresult forget_pages(void *start, int ours)
{
	CUresult result = 713;
	pthread_mutex_lock(&busy);
	wait_for_kernels();
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MOST && result; i++)
		if (registered[i].bytes != 0 && registered[i].start == (uint64_t)start && registered[i].ours == ours) {
			if (ours)
				munmap(start, registered[i].bytes);
			registered[i].bytes = 0;
			result = 0;
		}
	pthread_mutex_unlock(&lock);
	pthread_mutex_unlock(&busy);
	while (waiting && !lost)
		sched_yield();
	return result;
}
CUresult cuMemHostAlloc(void **start, size_t bytes, unsigned flags)
{
	ENTER;
	(void)flags;
	bytes = (bytes + 4095) & ~4095ull;
	*start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return *start == MAP_FAILED ? OUT_OF_MEMORY : note_pages(*start, bytes, current == &started ? 1 : 2);
}
CUresult cuMemFreeHost(void *start) { ENTER; return forget_pages(start, current == &started ? 1 : 2); }
CUresult cuMemHostGetDevicePointer_v2(uint64_t *address, void *start, unsigned flags) { *address = (uint64_t)start; return flags; }
CUresult cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags)
{
	ENTER;
	(void)flags;
	SPARE(sparing);
	/* Copies wait for this as well. */
	pthread_mutex_lock(&busy);
	answers();
	pthread_mutex_unlock(&busy);
	if (asked("no-register"))
		return NOT_SUPPORTED;
	if (bytes > 65536 && asked("slow-register"))
		sleep(1);
	for (size_t page = 0; page < bytes; page += 4096)
		if (mincore((uint8_t *)start + page, 1, &(unsigned char){ 0 }) != 0)
			return INVALID_VALUE;
	return note_pages(start, bytes, 0);
}
CUresult cuMemHostUnregister(void *start) { ENTER; SPARE(sparing); return forget_pages(start, 0); }
/* As in cuda.h: 1 context, 2 kind of memory, 7 number, 8 managed, 9 GPU, 11 start, 12 size, 13 mapped,
 * 15 for a NIC. */
CUresult cuPointerGetAttributes(unsigned count, const unsigned *which, void **places, uint64_t address)
{
	if (!started)
		return NOT_INITIALIZED;
	pthread_mutex_lock(&lock);
	int at = allocation(address, 1), range = reservation(address), host = registration(address, 1);
	uint64_t start = range >= 0 ? reserved[range].start : at >= 0 ? allocations[at].start : host >= 0 ? registered[host].start : 0;
	uint64_t bytes = range >= 0 ? reserved[range].bytes : at >= 0 ? allocations[at].bytes : host >= 0 ? registered[host].bytes : 0;
	for (unsigned i = 0; i < count; i++)
		switch (which[i]) {
		case 1: *(void **)places[i] = (at >= 0 && !allocations[at].apart) || host >= 0 ? &started : NULL; break;
		case 2: *(unsigned *)places[i] = at >= 0 ? 2 : host >= 0 ? 1 : 0; break;
		case 7: *(uint64_t *)places[i] = at >= 0 ? allocations[at].id : host >= 0 ? registered[host].id : 0; break;
		case 8: *(uint8_t *)places[i] = at >= 0 && allocations[at].managed; break;
		case 9: *(int *)places[i] = at < 0 && host < 0 ? -2 : 0; break;
		case 11: *(uint64_t *)places[i] = start; break;
		case 12: *(size_t *)places[i] = bytes; break;
		case 13: *(uint8_t *)places[i] = at >= 0 || host >= 0; break;
		case 15: *(uint8_t *)places[i] = at >= 0 && allocations[at].for_nic; break;
		default: broken("an attribute that nobody knows", which[i]);
		}
	pthread_mutex_unlock(&lock);
	return 0;
}

CUresult cuPointerSetAttribute(const void *value, unsigned attribute, uint64_t address)
{
	ENTER;
	return attribute == 6 && *(const unsigned *)value == 1 && allocation(address, 1) >= 0 ? 0 : INVALID_VALUE;
}
