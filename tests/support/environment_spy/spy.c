/* Appends the name of each variable that a program reads through the C library to the file ENVIRONMENT_SPY. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static char *value_of(const char *name)
{
    size_t length = strlen(name);
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++)
        if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=')
            return *entry + length + 1;
    return NULL;
}

static char *noted(const char *name)
{
    char line[256];
    size_t length = strnlen(name, sizeof line - 1);
    char *path = value_of("ENVIRONMENT_SPY");
    int file = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    memcpy(line, name, length);
    line[length] = '\n';
    if (file >= 0 && write(file, line, length + 1) >= 0)
        close(file);
    return value_of(name);
}

char *getenv(const char *name)
{
    return noted(name);
}

char *secure_getenv(const char *name)
{
    return noted(name);
}
