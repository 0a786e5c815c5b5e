/* The extension `_arenas`: arenas of the interpreter's memory that are kept when they are empty.

   An arena is what objects are cut from, a MiB at a time. The interpreter gives an empty one back
   to the system, and the next batch pays a page fault for each 4 KiB of another. kept_memory.py is
   the only caller and says what the functions promise. The two functions of CPython that it stands
   on are older than the stable interface and no part of it, so they are looked for, and nothing is
   kept without them.

   Python calls all of this with the lock of an interpreter, of which there may be several in a
   process: hence the lock below, which is held for a few instructions. */

#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdatomic.h>

typedef struct {
    void *context;
    void *(*allocate)(void *context, size_t size);
    void (*release)(void *context, void *arena, size_t size);
} Allocator;

#pragma weak PyObject_GetArenaAllocator
#pragma weak PyObject_SetArenaAllocator
extern void PyObject_GetArenaAllocator(Allocator *);
extern void PyObject_SetArenaAllocator(Allocator *);

enum {
    MOST = 4096,
    LEAST_SIZE = 1 << 18, /* Pieces of the stack of Python's frames are smaller, and come rarely. */
};

static Allocator original;
static void *kept[MOST];
static size_t arena_size; /* Of those that are kept: all have the first one's. */
static int count;
static int untouched; /* So many have been there, unused, since the last trim. */
static int users;
static int installed;

static atomic_flag busy = ATOMIC_FLAG_INIT;

static void lock(void)
{
    while (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire)) {
    }
}

static void unlock(void) { atomic_flag_clear_explicit(&busy, memory_order_release); }

static void *allocate(void *context, size_t size)
{
    void *arena = NULL;
    (void)context;
    lock();
    if (count > 0 && size == arena_size) {
        arena = kept[--count];
        if (untouched > count)
            untouched = count;
    }
    unlock();
    return arena != NULL ? arena : original.allocate(original.context, size);
}

static void release(void *context, void *arena, size_t size)
{
    int keeps;
    (void)context;
    lock();
    if (count == 0 && size >= LEAST_SIZE)
        arena_size = size;
    keeps = users > 0 && count < MOST && size == arena_size;
    if (keeps)
        kept[count++] = arena;
    unlock();
    if (!keeps)
        original.release(original.context, arena, size);
}

/* Give back the ones that have lain longest. */
static void give_back(int given)
{
    for (int i = 0; i < given; i++)
        original.release(original.context, kept[i], arena_size);
    count -= given;
    for (int i = 0; i < count; i++)
        kept[i] = kept[i + given];
    untouched = count;
}

static PyObject *arenas_begin(PyObject *module, PyObject *unused)
{
    Allocator ours = {NULL, allocate, release};
    (void)module, (void)unused;
    if (PyObject_GetArenaAllocator == NULL || PyObject_SetArenaAllocator == NULL)
        return PyBool_FromLong(0);
    if (users++ == 0 && !installed) {
        PyObject_GetArenaAllocator(&original);
        PyObject_SetArenaAllocator(&ours);
        installed = 1;
    }
    return PyBool_FromLong(1);
}

static PyObject *arenas_end(PyObject *module, PyObject *unused)
{
    Allocator current;
    (void)module, (void)unused;
    if (--users == 0) {
        lock();
        give_back(count);
        unlock();
        PyObject_GetArenaAllocator(&current);
        if (current.allocate == allocate) { /* Or somebody stands on it, and it stays. */
            PyObject_SetArenaAllocator(&original);
            installed = 0;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *arenas_trim(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    lock();
    give_back(untouched);
    unlock();
    Py_RETURN_NONE;
}

static PyObject *arenas_count(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyLong_FromLong(count);
}

static PyMethodDef methods[] = {
    {"begin", arenas_begin, METH_NOARGS, NULL},
    {"end", arenas_end, METH_NOARGS, NULL},
    {"trim", arenas_trim, METH_NOARGS, NULL},
    {"count", arenas_count, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_arenas", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__arenas(void) { return PyModuleDef_Init(&definition); }
