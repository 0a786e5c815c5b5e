/* The extension `_ranks`: which of the distinct rows of a batch each row is, in byte order.

   row_numbers.py has the same by Arrow and says what it promises. A row is a key or, with a start,
   8 bytes of that, the highest first, and a key: its bytes are not made to find out which one it
   is. Uses the stable interface of Python 3.11 alone. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 1024, START_BYTES = 8, PREFIX_BYTES = 8 };

/* A distinct row; `entry` is the key's place among the keys. */
typedef struct {
    uint64_t start;
    uint64_t hash;
    const char *key;
    Py_ssize_t length;
    Py_ssize_t entry;
} Row;

/* What sorts rows: most differ in their starts, or soon after what all keys begin with. */
typedef struct {
    uint64_t start;
    uint64_t prefix;
    const Row *row;
} Ranked;

typedef struct {
    Row *rows;
    Py_ssize_t count, room;
    uint32_t *slots; /* The number of a row, from 1 on, or 0. */
    uint64_t mask;
} Distinct;

/* Keys: objects, or bytes between offsets, as in Arrow's LargeBinary. */
typedef struct {
    PyObject *objects;
    const char *data;
    const int64_t *offsets;
    Py_ssize_t count;
} Keys;

static uint64_t seed;

static int64_t whole(const char *at)
{
    int64_t number;
    memcpy(&number, at, sizeof number);
    return number;
}

__extension__ typedef unsigned __int128 Wide;

static uint64_t mixed(uint64_t one, uint64_t other)
{
    Wide product = (Wide)one * other;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_of(uint64_t start, const char *key, Py_ssize_t length)
{
    uint64_t hash = mixed(seed ^ start, UINT64_C(0x9e3779b97f4a7c15)), rest = 0;
    Py_ssize_t left = length;
    for (; left >= 8; left -= 8, key += 8)
        hash = mixed(hash ^ (uint64_t)whole(key), UINT64_C(0xa0761d6478bd642f) ^ seed);
    memcpy(&rest, key, (size_t)left);
    return mixed(hash ^ rest, UINT64_C(0xe7037ed1a0b428db) ^ (uint64_t)length);
}

/* The key at a place; -1 with an error. */
static int key_at(const Keys *keys, Py_ssize_t place, const char **key, Py_ssize_t *length)
{
    if (place < 0 || place >= keys->count) {
        PyErr_Format(PyExc_IndexError, "no key %zd among %zd", place, keys->count);
        return -1;
    }
    if (keys->objects == NULL) {
        *key = keys->data + keys->offsets[place];
        *length = (Py_ssize_t)(keys->offsets[place + 1] - keys->offsets[place]);
        return 0;
    }
    return PyBytes_AsStringAndSize(PyList_GetItem(keys->objects, place), (char **)key, length);
}

static int grown(Distinct *found)
{
    Py_ssize_t room = found->room == 0 ? FIRST_SLOTS / 2 : found->room * 2;
    uint64_t size = (uint64_t)room * 2;
    Row *rows = PyMem_Realloc(found->rows, (size_t)room * sizeof *rows);
    if (rows != NULL)
        found->rows = rows;
    uint32_t *slots = PyMem_Calloc((size_t)size, sizeof *slots);
    if (rows == NULL || slots == NULL) {
        PyMem_Free(slots);
        PyErr_NoMemory();
        return -1;
    }
    PyMem_Free(found->slots);
    found->slots = slots;
    found->mask = size - 1;
    found->room = room;
    for (Py_ssize_t i = 0; i < found->count; i++) {
        uint64_t slot = rows[i].hash & found->mask;
        while (slots[slot] != 0)
            slot = (slot + 1) & found->mask;
        slots[slot] = (uint32_t)i + 1;
    }
    return 0;
}

/* The number of a row, in the order of their firsts; -1 with an error. */
static Py_ssize_t numbered(Distinct *found, uint64_t start, const char *key, Py_ssize_t length,
                           Py_ssize_t entry)
{
    if (found->count == found->room && grown(found) < 0)
        return -1;
    uint64_t hash = hash_of(start, key, length), slot = hash & found->mask;
    for (; found->slots[slot] != 0; slot = (slot + 1) & found->mask) {
        Py_ssize_t number = (Py_ssize_t)found->slots[slot] - 1;
        const Row *row = found->rows + number;
        if (row->hash == hash && row->start == start && row->length == length
            && memcmp(row->key, key, (size_t)length) == 0)
            return number;
    }
    found->slots[slot] = (uint32_t)found->count + 1;
    found->rows[found->count] = (Row){start, hash, key, length, entry};
    return found->count++;
}

/* With how many bytes the keys of all rows begin alike. */
static Py_ssize_t alike(const Distinct *found)
{
    const Row *first = found->rows;
    Py_ssize_t same = found->count ? first->length : 0;
    for (Py_ssize_t i = 1; i < found->count && same; i++) {
        const Row *row = first + i;
        Py_ssize_t most = row->length < same ? row->length : same;
        for (same = 0; same < most && row->key[same] == first->key[same];)
            same++;
    }
    return same;
}

/* The bytes of a key from `from` on, filled up with zeros, as a number that sorts as they do. */
static uint64_t prefix_of(const Row *row, Py_ssize_t from)
{
    uint64_t prefix = 0;
    for (Py_ssize_t i = from; i < from + PREFIX_BYTES; i++)
        prefix = prefix << 8 | (i < row->length ? (unsigned char)row->key[i] : 0);
    return prefix;
}

static int order(const void *one, const void *other)
{
    const Ranked *a = one, *b = other;
    if (a->start != b->start)
        return a->start < b->start ? -1 : 1;
    if (a->prefix != b->prefix)
        return a->prefix < b->prefix ? -1 : 1;
    Py_ssize_t ours = a->row->length, theirs = b->row->length;
    int sign = memcmp(a->row->key, b->row->key, (size_t)(ours < theirs ? ours : theirs));
    return sign != 0 ? sign : (ours > theirs) - (ours < theirs);
}

/* The bytes of a row: an object that there is already, or a new one. */
static PyObject *made(const Keys *keys, const Row *row, int in_windows)
{
    if (!in_windows && keys->objects != NULL)
        return Py_NewRef(PyList_GetItem(keys->objects, row->entry));
    Py_ssize_t begin = in_windows ? START_BYTES : 0;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, begin + row->length);
    if (bytes == NULL)
        return NULL;
    char *at = PyBytes_AsString(bytes);
    for (Py_ssize_t i = 0; i < begin; i++)
        *at++ = (char)(row->start >> (8 * (START_BYTES - 1 - i)));
    memcpy(at, row->key, (size_t)row->length);
    return bytes;
}

/* Put the rows in order: their list, and `ranks`, the place in it of each number. */
static PyObject *in_order(const Distinct *found, const Keys *keys, int in_windows, int64_t *ranks)
{
    Py_ssize_t count = found->count;
    Ranked *ranked = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *ranked);
    if (ranked == NULL)
        return PyErr_NoMemory();
    Py_ssize_t same = alike(found);
    for (Py_ssize_t i = 0; i < count; i++) {
        const Row *row = found->rows + i;
        ranked[i] = (Ranked){row->start, prefix_of(row, same), row};
    }
    if (count)
        qsort(ranked, (size_t)count, sizeof *ranked, order);
    PyObject *rows = PyList_New(count);
    for (Py_ssize_t i = 0; rows != NULL && i < count; i++) {
        PyObject *row = made(keys, ranked[i].row, in_windows);
        if (row == NULL)
            Py_CLEAR(rows);
        else {
            PyList_SetItem(rows, i, row);
            ranks[ranked[i].row - found->rows] = i;
        }
    }
    PyMem_Free(ranked);
    return rows;
}

/* Number `count` entries and give (numbers, rows); `places` and `starts` are NULL if there are
   none: each key is an entry, and rows are keys. */
static PyObject *ranked_entries(const Keys *keys, Py_ssize_t count, const int64_t *places,
                                const int64_t *starts)
{
    Distinct found = {0};
    PyObject *rows = NULL;
    PyObject *numbers = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    int64_t *number = numbers == NULL ? NULL : (int64_t *)(void *)PyBytes_AsString(numbers);
    int64_t *ranks = NULL;
    if (number == NULL)
        goto done;
    if (count >= (Py_ssize_t)UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a batch has fewer than 4 294 967 295 entries");
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t length, entry = places == NULL ? i : (Py_ssize_t)places[i];
        const char *key;
        if (key_at(keys, entry, &key, &length) < 0)
            goto done;
        uint64_t start = starts == NULL ? 0 : (uint64_t)starts[i];
        if ((number[i] = numbered(&found, start, key, length, entry)) < 0)
            goto done;
    }
    ranks = PyMem_Malloc((size_t)(found.count ? found.count : 1) * sizeof *ranks);
    if (ranks == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    rows = in_order(&found, keys, starts != NULL, ranks);
    for (Py_ssize_t i = 0; rows != NULL && i < count; i++)
        number[i] = ranks[number[i]];
done:
    PyMem_Free(ranks);
    PyMem_Free(found.rows);
    PyMem_Free(found.slots);
    PyObject *result = rows == NULL ? NULL : PyTuple_Pack(2, numbers, rows);
    Py_XDECREF(numbers);
    Py_XDECREF(rows);
    return result;
}

/* Take the keys of `count` rows from `first` on; -1 with an error. */
static int with_offsets(Keys *keys, const Py_buffer *data, const Py_buffer *offsets,
                        Py_ssize_t first)
{
    Py_ssize_t known = offsets->len / (Py_ssize_t)sizeof(int64_t);
    if (first < 0 || keys->count < 0 || first > known || keys->count >= known - first) {
        PyErr_SetString(PyExc_ValueError, "there are fewer offsets than rows");
        return -1;
    }
    keys->data = data->buf;
    keys->offsets = (const int64_t *)offsets->buf + first;
    int64_t before = keys->offsets[0] < 0 ? data->len + 1 : 0;
    for (Py_ssize_t i = 0; i <= keys->count; i++) {
        if (keys->offsets[i] < before || keys->offsets[i] > data->len) {
            PyErr_SetString(PyExc_ValueError, "an offset is not within the data");
            return -1;
        }
        before = keys->offsets[i];
    }
    return 0;
}

static PyObject *of_entries(const Keys *keys, PyObject *places, PyObject *starts)
{
    Py_buffer place = {0}, start = {0};
    PyObject *result = NULL;
    if (starts == Py_None)
        return ranked_entries(keys, keys->count, NULL, NULL);
    if (PyObject_GetBuffer(places, &place, PyBUF_SIMPLE) == 0
        && PyObject_GetBuffer(starts, &start, PyBUF_SIMPLE) == 0) {
        if (place.len != start.len || place.len % (Py_ssize_t)sizeof(int64_t) != 0)
            PyErr_SetString(PyExc_ValueError, "want a key and a start for each entry");
        else
            result = ranked_entries(keys, place.len / (Py_ssize_t)sizeof(int64_t), place.buf,
                                    start.buf);
    }
    PyBuffer_Release(&place);
    PyBuffer_Release(&start);
    return result;
}

static PyObject *of_objects(PyObject *module, PyObject *arguments)
{
    PyObject *objects, *places = Py_None, *starts = Py_None;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O|OO", &objects, &places, &starts))
        return NULL;
    if (!PyList_Check(objects)) {
        PyErr_SetString(PyExc_TypeError, "want a list of bytes");
        return NULL;
    }
    Keys keys = {objects, NULL, NULL, PyList_Size(objects)};
    return of_entries(&keys, places, starts);
}

static PyObject *of_columns(PyObject *module, PyObject *arguments)
{
    Py_buffer data, offsets;
    Py_ssize_t first;
    PyObject *places = Py_None, *starts = Py_None, *result = NULL;
    Keys keys = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*y*nn|OO", &data, &offsets, &first, &keys.count, &places,
                          &starts))
        return NULL;
    if (with_offsets(&keys, &data, &offsets, first) == 0)
        result = of_entries(&keys, places, starts);
    PyBuffer_Release(&data);
    PyBuffer_Release(&offsets);
    return result;
}

static PyMethodDef methods[] = {
    {"of_objects", of_objects, METH_VARARGS,
     "of_objects(keys, places=None, starts=None, /)\n--\n\nRank a list of keys, or entries."},
    {"of_columns", of_columns, METH_VARARGS,
     "of_columns(data, offsets, first, count, places=None, starts=None, /)\n--\n\n"
     "Rank the keys of a column, or entries."},
    {NULL, NULL, 0, NULL},
};

static int executed(PyObject *module)
{
    (void)module;
    /* Not that of Python's own hashes, which Spark sets to 0: who knows it can write keys that
       collide, and a batch of these would take hours. */
    PyObject *os = PyImport_ImportModule("os");
    PyObject *drawn = os == NULL ? NULL : PyObject_CallMethod(os, "urandom", "n",
                                                             (Py_ssize_t)sizeof seed);
    const char *bytes = drawn == NULL ? NULL : PyBytes_AsString(drawn);
    if (bytes != NULL)
        memcpy(&seed, bytes, sizeof seed);
    Py_XDECREF(os);
    Py_XDECREF(drawn);
    return bytes == NULL ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)executed}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_ranks", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__ranks(void) { return PyModuleDef_Init(&definition); }
