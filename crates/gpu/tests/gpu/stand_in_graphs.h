/* Graphs of the stand-in `stand_in.c`: recorded or built of nodes, inspected, instantiated, launched. */

CUresult cuStreamBeginCapture_v2(struct stream *stream, unsigned mode)
{
    ENTER();
    if (mode != 2 || stream->records)
        LEAVE(INVALID_VALUE);
    stream->records = calloc(1, sizeof *stream->records);
    LEAVE(0);
}

CUresult cuStreamEndCapture(struct stream *stream, struct graph **graph)
{
    ENTER();
    *graph = stream->records;
    for (struct stream *one = streams; *graph && one; one = one->next)
        if (one->records == *graph)
            one->records = NULL;
    LEAVE(*graph ? 0 : INVALID_VALUE);
}

CUresult cuGraphCreate(struct graph **graph, unsigned flags)
{
    ENTER();
    *graph = calloc(1, sizeof **graph);
    LEAVE(flags ? INVALID_VALUE : 0);
}

CUresult cuGraphDestroy(struct graph *graph)
{
    ENTER();
    may_go();
    for (size_t i = 0; i < graph->count; i++)
        free(graph->nodes[i]);
    free(graph);
    LEAVE(0);
}

CUresult cuGraphGetNodes(struct graph *graph, struct op **nodes, size_t *count)
{
    ENTER();
    size_t room = nodes ? *count : 0;
    if (nodes && !room) LEAVE(INVALID_VALUE); /* as the driver of CUDA 13.0 on an H200 */
    *count = graph->count;
    if (nodes)
        memcpy(nodes, graph->nodes, (room < *count ? room : *count) * sizeof *nodes);
    LEAVE(0);
}

CUresult cuGraphNodeGetType(struct op *node, unsigned *kind)
{
    *kind = node->kind;
    return 0;
}

/* CUDA_MEMCPY3D, as far as it is read. */
struct copy3d {
    size_t src_x, src_y, src_z, src_lod;
    unsigned src_kind;
    const void *src_host;
    uint64_t src_device;
    void *src_array, *reserved0;
    size_t src_pitch, src_height, dst_x, dst_y, dst_z, dst_lod;
    unsigned dst_kind;
    void *dst_host;
    uint64_t dst_device;
};

static int is_pinned(uint64_t address)
{
    return range_of((uintptr_t)address, 1) != NULL;
}

CUresult cuGraphMemcpyNodeGetParams(struct op *node, struct copy3d *copy)
{
    ENTER();
    if (node->kind != COPY)
        LEAVE(INVALID_VALUE);
    copy->src_kind = is_pinned(node->from) ? 2 : 1;
    copy->src_host = (const void *)node->from;
    copy->src_device = node->from;
    copy->dst_kind = is_pinned(node->to) ? 2 : 1;
    copy->dst_host = (void *)node->to;
    copy->dst_device = node->to;
    LEAVE(0);
}

CUresult cuGraphChildGraphNodeGetGraph(struct op *node, struct graph **graph)
{
    (void)node, (void)graph;
    return INVALID_VALUE;
}

struct instantiate {
    uint64_t flags;
    struct stream *upload;
    struct op *node;
    unsigned result;
};

CUresult cuGraphInstantiateWithParams(struct exec **exec, struct graph *graph, struct instantiate *wanted)
{
    ENTER();
    if (wanted->flags != 4)
        LEAVE(INVALID_VALUE);
    for (size_t i = 0; i < graph->count; i++)
        if (graph->nodes[i]->kind == COPY && !(is_pinned(graph->nodes[i]->from) && is_pinned(graph->nodes[i]->to))) {
            wanted->node = graph->nodes[i];
            wanted->result = 3;
            LEAVE(NOT_SUPPORTED);
        }
    *exec = calloc(1, sizeof **exec);
    (*exec)->count = graph->count;
    for (size_t i = 0; i < graph->count; i++)
        (*exec)->nodes[i] = *graph->nodes[i];
    LEAVE(0);
}

CUresult cuGraphUpload(struct exec *exec, struct stream *stream)
{
    (void)stream;
    ENTER();
    exec->uploaded = 1;
    LEAVE(0);
}

CUresult cuGraphLaunch(struct exec *exec, struct stream *stream)
{
    ENTER();
    LEAVE(put(stream, (struct op){.kind = GRAPH, .exec = exec}));
}

CUresult cuGraphExecDestroy(struct exec *exec)
{
    ENTER();
    must_rest("a graph was destroyed under itself");
    may_go();
    free(exec);
    LEAVE(0);
}
