/* The extension `_records`: record batches of Kafka (magic 2) to Python objects and back.

   It opens no file and no socket, starts no thread and links no library. codec.py is its only
   caller and says what the functions promise. It uses the stable interface of Python 3.11, so one
   build serves all later versions. */

#include "_records.h"

static PyObject *records_crc32c(PyObject *module, PyObject *data)
{
    Py_buffer view;
    (void)module;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t sum = crc32c(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(sum);
}

static PyObject *records_use_instruction(PyObject *module, PyObject *allowed)
{
    (void)module;
    int wanted = PyObject_IsTrue(allowed);
    return wanted < 0 ? NULL : PyBool_FromLong(crc32c_by_instruction(wanted));
}

static PyMethodDef methods[] = {
    {"decode", records_decode, METH_VARARGS, NULL},
    {"encode", records_encode, METH_VARARGS, NULL},
    {"cut", records_cut, METH_VARARGS, NULL},
    {"size_bytes", records_size_bytes, METH_O, NULL},
    {"joined", records_joined, METH_O, NULL},
    {"cuts", records_cuts, METH_VARARGS, NULL},
    {"larger", records_larger, METH_VARARGS, NULL},
    {"partitions", records_partitions, METH_VARARGS, NULL},
    {"crc32c", records_crc32c, METH_O, NULL},
    {"use_instruction", records_use_instruction, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static int executed(PyObject *module)
{
    (void)module;
    crc32c_by_instruction(1);
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)executed}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_records", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__records(void) { return PyModuleDef_Init(&definition); }
