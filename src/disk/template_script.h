/* Shell that runs inside a new root file system while a template is built. Private to
 * template_build.c. */
#pragma once

/* Run with network, after all packages are installed: makes the account. $1: the working directory,
 * $2: the account that owns it. */
extern const char sp_template_account_script[];
/* Run last, without network: takes away all that is of the build machine or differs from build to
 * build. */
extern const char sp_template_finish_script[];
