/*
 * The structure of graphs: nodes and their dependencies, cloning, order.
 */
#include "sim/cuda/graph/graph.h"

#include "sim/cuda/graph/graph_memory.h"
#include "sim/cuda/graph/user_object.h"
#include "sim/cuda/process/object.h"

/* marks of nodes are used by one walk at a time */
static pthread_mutex_t marks_lock = PTHREAD_MUTEX_INITIALIZER;

struct graph *graph_new(void)
{
    return object_new(KIND_GRAPH, sizeof(struct graph));
}

bool node_depend(struct node *n, struct node *on)
{
    for (size_t i = 0; i < n->depend_count; i++) {
        if (n->depend[i] == on) return true;
    }
    struct node **more = realloc(n->depend, (n->depend_count + 1) * sizeof *more);
    if (!more) return false;
    n->depend = more;
    n->depend[n->depend_count++] = on;
    return true;
}

struct node *node_new(struct graph *g, enum node_kind kind, struct node *const *depend, size_t count)
{
    struct node *n = object_new(KIND_NODE, sizeof *n);
    if (!n) return NULL;
    n->graph = g;
    n->kind = kind;
    for (size_t i = 0; i < count; i++) {
        if (!node_depend(n, depend[i])) {
            free(n->depend);
            object_free(n);
            return NULL;
        }
    }
    if (g->last)
        g->last->next = n;
    else
        g->first = n;
    g->last = n;
    g->count++;
    return n;
}

static void node_clear(struct node *n)
{
    if (n->child) graph_free(n->child);
    if (n->memory) graph_memory_release(n->memory);
    free(n->work.argument);
    free(n->kernel_pointers);
    free(n->depend);
    object_free(n);
}

void node_free(struct node *n)
{
    struct graph *g = n->graph;
    struct node *before = NULL;
    for (struct node *o = g->first; o; o = o->next) {
        if (o->next == n) before = o;
        for (size_t i = 0; i < o->depend_count; i++) {
            if (o->depend[i] == n) o->depend[i--] = o->depend[--o->depend_count];
        }
    }
    if (before)
        before->next = n->next;
    else
        g->first = n->next;
    if (g->last == n) g->last = before;
    g->count--;
    node_clear(n);
}

void graph_free(struct graph *g)
{
    for (struct node *n = g->first, *next; n; n = next) {
        next = n->next;
        node_clear(n);
    }
    held_release(&g->held);
    object_free(g);
}

bool node_set_work(struct node *n, const struct work *w)
{
    void *copy = NULL;
    if (w->argument_bytes) {
        copy = malloc(w->argument_bytes);
        if (!copy) return false;
        memcpy(copy, w->argument, w->argument_bytes);
    }
    free(n->work.argument);
    n->work = *w;
    n->work.argument = copy;
    return true;
}

static bool node_copy_payload(struct node *to, const struct node *from)
{
    to->kernel = from->kernel;
    to->host = from->host;
    to->event = from->event;
    to->disabled = from->disabled;
    if (from->memory) {
        if (!to->memory) __atomic_fetch_add(&from->memory->references, 1, __ATOMIC_RELAXED);
        to->memory = from->memory;
    }
    if (from->child) {
        if (to->child) graph_free(to->child);
        to->child = graph_clone(from->child);
        if (!to->child) return false;
        to->child->owned = true;
    }
    return node_set_work(to, &from->work);
}

struct graph *graph_clone(const struct graph *g)
{
    struct graph *copy = graph_new();
    if (!copy) return NULL;
    if (!held_copy(&copy->held, g->held)) {
        graph_free(copy);
        return NULL;
    }
    for (struct node *n = g->first; n; n = n->next) {
        struct node *m = node_new(copy, n->kind, NULL, 0);
        bool ok = m && node_copy_payload(m, n);
        if (m) m->origin = n;
        for (size_t i = 0; ok && i < n->depend_count; i++) {
            struct node *on = copy->first;
            while (on && on->origin != n->depend[i])
                on = on->next;
            /* Dependencies on younger nodes (added later) are joined below. */
            if (on) ok = node_depend(m, on);
        }
        if (!ok) {
            graph_free(copy);
            return NULL;
        }
    }
    for (struct node *m = copy->first; m; m = m->next) {
        for (size_t i = 0; i < m->origin->depend_count; i++) {
            struct node *on = copy->first;
            while (on && on->origin != m->origin->depend[i])
                on = on->next;
            if (on && !node_depend(m, on)) {
                graph_free(copy);
                return NULL;
            }
        }
    }
    return copy;
}

struct node *graph_find(struct graph *g, const struct node *origin)
{
    for (struct node *n = g->first; n; n = n->next) {
        if (n->origin == origin) return n;
        struct node *in = n->child ? graph_find(n->child, origin) : NULL;
        if (in) return in;
    }
    return NULL;
}

struct node **graph_order(struct graph *g)
{
    struct node **out = calloc(g->count + 1, sizeof(struct node *));
    size_t placed = 0;
    if (!out) return NULL;
    pthread_mutex_lock(&marks_lock);
    for (struct node *n = g->first; n; n = n->next)
        n->mark = 0;
    for (bool moved = true; moved && placed < g->count;) {
        moved = false;
        for (struct node *n = g->first; n; n = n->next) {
            bool ready = !n->mark;
            for (size_t i = 0; ready && i < n->depend_count; i++)
                ready = n->depend[i]->mark;
            if (!ready) continue;
            n->mark = 1;
            out[placed++] = n;
            moved = true;
        }
    }
    pthread_mutex_unlock(&marks_lock);
    if (placed == g->count) return out;
    free(out);
    return NULL;
}
